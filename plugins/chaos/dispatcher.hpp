// SPDX-License-Identifier: Apache-2.0
//
// Forwards operations to the wrapped group: at once, after a delay, or never. Delayed operations keep the order of
// their stream: collectives, receives, and sends to one peer. Only messages that may be overtaken are reordered. A
// thread, started with the first delayed operation, forwards those that are due, so that submit never blocks. Works of
// delayed operations do not support notices (abi/ext/notify.h). A probed message whose recv is not forwarded is
// dropped.
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

// Thread-safe.
class Dispatcher {
 public:
  Dispatcher(const sdk::Inner& inner, int32_t world_size) : inner_(inner), world_size_(world_size) {}
  // Requires that all works have been released.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // Forwards `op` after `delay_ns`, and after the delayed operations of its stream. Like ProcessGroup::submit.
  std::unique_ptr<sdk::Work> submit(const bp_op& op, int64_t delay_ns);
  // Forwards a send after `delay_ns`, independently of the order of its stream.
  std::unique_ptr<sdk::Work> submit_reordered(const bp_op& op, int64_t delay_ns);
  // The number of messages that later messages to the same rank have overtaken.
  uint64_t overtaken() const;
  // Never forwards it: it ends by cancel or abort.
  std::unique_ptr<sdk::Work> drop(const bp_op& op);
  // Forwards nothing for this long.
  void stall(int64_t duration_ns);
  // Fails delayed operations, and all operations submitted later. Does not touch the wrapped group.
  void abort(const sdk::Failure& why);

 private:
  struct Delayed;
  class DelayedWork;

  void check_aborted(const bp_op& op) const;
  std::unique_ptr<sdk::Work> delay(std::shared_ptr<Delayed> delayed);
  bool must_queue(int64_t stream, int64_t now) const;
  std::shared_ptr<Delayed> next_due(int64_t now, int64_t* earliest) const;
  void count_overtaken(const bp_op& by, const Delayed* until);
  void forward(const std::shared_ptr<Delayed>& delayed, std::unique_lock<std::mutex>* lock);
  void run();
  // Waits until the operation has been forwarded. Returns false after timeout_ns. Throws if the operation failed
  // before.
  bool await_inner(Delayed* delayed, int64_t timeout_ns);
  bool wait(Delayed* delayed, int64_t timeout_ns);
  void cancel(const std::shared_ptr<Delayed>& delayed);

  const sdk::Inner inner_;
  const int32_t world_size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Delayed>> delayed_;  // in the order of submission
  int64_t stalled_until_ = 0;                    // CLOCK_MONOTONIC, nanoseconds
  std::optional<sdk::Failure> aborted_;
  uint64_t overtaken_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace backplane::chaos
