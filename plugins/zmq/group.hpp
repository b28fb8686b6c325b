// SPDX-License-Identifier: Apache-2.0
//
// The process group of the backends of this plugin.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "messages.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "transport.hpp"

namespace backplane::zmq {

class ZmqGroup final : public sdk::ProcessGroup, private sdk::ProbeTable {
 public:
  explicit ZmqGroup(const sdk::Context& context);
  ~ZmqGroup() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  const void* extension(std::string_view id) override;

  // Implement wait and cancel of the group's works.
  bool wait(sdk::Completion& operation, int64_t timeout_ns);
  void cancel(sdk::Work& work) noexcept;

 private:
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override;
  void drop(bp_message* message) noexcept override;
  // Sends the frames of a new operation.
  void send_ready() noexcept;
  void fail(const std::exception& e);
  void finish_in_line(Driver::Lock& lock, sdk::CompletionWork& work, const bp_op& op);
  // Called by the driver and by the group's thread.
  TimePoint progress(const sdk::Completion* wanted) noexcept;
  TimePoint upkeep(Driver::Lock& lock);
  // Answer the requests of the ZAP handler: those with tokens or known keys, and the others by look-ups in the store,
  // on the group's thread.
  void answer_known();
  void answer_others(Driver::Lock& lock);
  // Progresses on a thread that may not be the driver. Call after calls of libzmq, which may have consumed the
  // readiness that the driver waits for.
  void catch_up();
  void close_after_abort();

  const sdk::Host host_;
  const Settings settings_;
  base::EventFd wake_;
  Sockets sockets_;    // releases buffers and raises wake_ until it is shut down
  std::string token_;  // that clients without keys must have
  std::unique_ptr<Messages> messages_;
  std::unique_ptr<Driver> driver_;
  bool closed_ = false;
  bool leaving_ = false;                           // the store must not be used any more
  std::unordered_map<std::string, int32_t> keys_;  // ranks by public key; those read from the store
  std::chrono::milliseconds look_up_pause_{0};     // between two look-ups
  TimePoint next_look_up_;
  std::thread thread_;
};

}  // namespace backplane::zmq
