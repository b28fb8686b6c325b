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

  // For works. wait: sdk::Work's.
  bool wait(sdk::Completion& operation, int64_t timeout_ns);
  void cancel(sdk::Work& work) noexcept;

 private:
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override;
  void drop(bp_message* message) noexcept override;
  // Sends the frames of a new operation.
  void send_ready() noexcept;
  void fail(const std::exception& e);
  void finish_in_line(Driver::Lock& lock, sdk::CompletionWork& work, const bp_op& op);
  // The driver's.
  TimePoint progress(const sdk::Completion* wanted) noexcept;
  TimePoint upkeep(Driver::Lock& lock);
  // Admits or refuses ranks that have dialled this one, if their keys are known. The group's thread looks up the others
  // in the store.
  void admit_known();
  void admit_others(Driver::Lock& lock);
  // For other threads: their calls of libzmq may have consumed the readiness that the driver waits for.
  void catch_up();
  void close_after_abort();

  const sdk::Host host_;
  const Settings settings_;
  EventFd wake_;
  Sockets sockets_;  // releases buffers and raises wake_ until it is shut down
  std::unique_ptr<Messages> messages_;
  std::unique_ptr<Driver> driver_;
  bool closed_ = false;
  bool leaving_ = false;                           // the store may not be used any more
  std::unordered_map<std::string, int32_t> keys_;  // ranks by public key, as far as read from the store
  std::chrono::milliseconds look_up_pause_{0};     // between two look-ups in the store
  TimePoint next_look_up_;
  std::thread thread_;
};

}  // namespace backplane::zmq
