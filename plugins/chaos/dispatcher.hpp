// SPDX-License-Identifier: Apache-2.0
//
// Hands operations on to the wrapped group: at once, later, or never. What is held back keeps its order: collectives
// among each other, sends to one peer, receives; but for messages that may be passed. A thread of its own, started when
// the first operation is held back, hands on what is due, so that submit never blocks for it. The works of what is held
// back give no notices (abi/ext/notify.h). A probed message whose recv is not handed on is dropped.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "backplane/sdk/layer.hpp"

namespace backplane::chaos {

// Any thread.
class Dispatcher {
 public:
  Dispatcher(const sdk::Inner& inner, int32_t world_size) : inner_(inner), world_size_(world_size) {}
  // All works have been released.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // Hands `op` on after `delay_ns`, behind those of its order that are held back. Like ProcessGroup::submit.
  std::unique_ptr<sdk::Work> submit(const bp_op& op, int64_t delay_ns);
  // Hands a send on after `delay_ns`; those behind it do not wait for it, nor it for those before.
  std::unique_ptr<sdk::Work> let_pass(const bp_op& op, int64_t delay_ns);
  // How many messages have been passed by later ones to the same rank.
  uint64_t passed() const;
  // Never hands it on: it ends by cancel or abort.
  std::unique_ptr<sdk::Work> drop(const bp_op& op);
  // Nothing is handed on for so long.
  void stall(int64_t duration_ns);
  // Ends what is held back and refuses what comes; does not touch the wrapped group.
  void abort(const sdk::Failure& why);

 private:
  struct Held;
  class HeldWork;

  void refuse_if_aborted(const bp_op& op) const;
  std::unique_ptr<sdk::Work> hold(std::shared_ptr<Held> held);
  bool must_queue(int64_t stream, int64_t now) const;
  std::shared_ptr<Held> next_due(int64_t now, int64_t* earliest) const;
  void note_passed(const bp_op& by, const Held* until);
  void hand_on(const std::shared_ptr<Held>& held, std::unique_lock<std::mutex>* lock);
  void run();
  // Waits until the wrapped group has it. False: not within timeout_ns. Throws if it failed before.
  bool await_inner(Held* held, int64_t timeout_ns);
  bool wait(Held* held, int64_t timeout_ns);
  void cancel(const std::shared_ptr<Held>& held);

  const sdk::Inner inner_;
  const int32_t world_size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Held>> held_;  // in the order of submission
  int64_t stalled_until_ = 0;              // CLOCK_MONOTONIC, nanoseconds
  std::optional<sdk::Failure> aborted_;
  uint64_t passed_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace backplane::chaos
