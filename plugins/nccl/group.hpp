// SPDX-License-Identifier: Apache-2.0
//
// One rank on one device: communicator, collectives, messages, and the poller that progresses them.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "backplane/abi/ext/native.h"
#include "backplane/sdk/sdk.hpp"
#include "collectives.hpp"
#include "failure.hpp"
#include "memory.hpp"
#include "messages.hpp"
#include "transport.hpp"

namespace backplane::nccl {

class Group final : public sdk::ProcessGroup {
 public:
  // Selects the capabilities of a group; an empty result means all that the backend declares.
  using SelectCapabilities = std::span<const bp_capability* const> (*)(bool stages, bool reduces_f8);

  // Blocks until all ranks are connected.
  Group(const sdk::Context& context, SelectCapabilities select);
  ~Group() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  std::span<const bp_capability* const> capabilities() const noexcept override { return capabilities_; }
  const void* extension(std::string_view id) override;

 private:
  using Clock = std::chrono::steady_clock;

  Group(const sdk::Context& context, SelectCapabilities select, const sdk::Deadline& deadline);
  void require_supported(const bp_buffer& buffer) const;
  bool progress(sdk::Poller::Sleep& sleep);
  void on_frame(int32_t peer, const Frame& frame);
  void on_disconnect(int32_t peer);
  sdk::Failure loss_of(int32_t peer) const;
  std::chrono::nanoseconds grace_of(int32_t peer) const;
  bool fail_overdue(sdk::Poller::Sleep& sleep);
  void stop_device() noexcept;
  void launch_in_background() noexcept;
  void fail(const sdk::Failure& why) noexcept;
  void send_goodbyes() noexcept;

  const Api& api_;
  const sdk::Host host_;
  const int device_;
  const int32_t rank_;
  const int32_t size_;
  const bool stages_;
  const std::span<const bp_capability* const> capabilities_;
  GroupFailure failure_{[this] { poller_.wake(); }};
  Pool pool_;
  // Of the poller's thread:
  std::vector<bool> said_goodbye_;                     // by rank
  std::map<int32_t, Clock::time_point> disconnected_;  // peers, and when their connection ended
  bool is_on_device_ = false;
  bool device_stopped_ = false;

  std::atomic<int32_t> first_lost_ = -1;  // the first peer that disconnected without a goodbye
  Transport transport_;
  const std::unique_ptr<Communicator> comm_;
  const bp_native_api native_;
  DeviceMemory memory_;
  Collectives collectives_;
  Messages messages_;
  sdk::Poller poller_;  // after all that its thread uses
  const sdk::Failure no_launcher_{BP_RESOURCE, "nccl: out of memory for the thread that launches collectives"};
  std::mutex launcher_mutex_;
  std::optional<sdk::Poller> launcher_;  // created when a launch first outlasts its submit
};

}  // namespace backplane::nccl
