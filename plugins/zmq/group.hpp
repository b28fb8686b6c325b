// SPDX-License-Identifier: Apache-2.0
//
// The process group of the backends of this plugin: operations in, Protocol and Driver behind.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "driver.hpp"
#include "protocol.hpp"
#include "settings.hpp"
#include "sockets.hpp"

namespace backplane::zmq_plugin {

class ZmqGroup final : public sdk::ProcessGroup, private sdk::ProbeTable {
 public:
  explicit ZmqGroup(const sdk::Context& context);
  ~ZmqGroup() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  const void* extension(std::string_view id) override;

  // For works. wait: sdk::Work's.
  bool wait(Operation& operation, int64_t timeout_ns);
  void cancel(const OperationPtr& operation) noexcept;
  void on_end(Operation& operation, sdk::Notice notice);

 private:
  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override;
  void drop(bp_message* message) noexcept override;
  // After what the protocol was given to do: see that it gets on.
  void go_on();
  void fail(const std::exception& e);
  void finish_in_line(Driver::Lock& lock, const OperationPtr& operation, const bp_op& op);
  // The driver's.
  TimePoint progress(const Operation* wanted) noexcept;
  TimePoint upkeep(Driver::Lock& lock);
  // Lets in, or not, those who have dialled this rank, as far as it knows their keys; the others are left to the
  // group's thread, which asks the store.
  void admit_known();
  void admit_others(Driver::Lock& lock);
  // For others: libzmq may have used a call to see what came in, and would not tell the driver any more.
  void catch_up();
  void close_after_abort();

  const sdk::Host host_;
  const Settings settings_;
  EventFd wake_;
  Releases releases_;
  Sockets sockets_;  // its messages give their buffers back to releases_
  std::unique_ptr<Protocol> protocol_;
  std::unique_ptr<Driver> driver_;
  bool closed_ = false;
  bool leaving_ = false;                           // the store does not answer any more
  std::unordered_map<std::string, int32_t> keys_;  // ranks by the public keys that were seen in the store
  std::chrono::milliseconds look_up_pause_{0};     // between two looks into the store
  TimePoint next_look_up_;
  std::thread thread_;
};

}  // namespace backplane::zmq_plugin
