// SPDX-License-Identifier: Apache-2.0
//
// One rank on one device: communicator, collectives, messages, and the poller that progresses them.
#pragma once

#include <memory>

#include "backplane/abi/ext/native.h"
#include "backplane/sdk/sdk.hpp"
#include "collectives.hpp"
#include "departures.hpp"
#include "failure.hpp"
#include "launcher.hpp"
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
  Group(const sdk::Context& context, SelectCapabilities select, const sdk::Deadline& deadline);
  void require_supported(const bp_buffer& buffer) const;
  bool progress(sdk::Poller::Sleep& sleep);
  void on_frame(int32_t peer, const Frame& frame);
  void on_disconnect(int32_t peer);
  bool fail_overdue(sdk::Poller::Sleep& sleep);
  void stop_device() noexcept;
  void fail(const sdk::Failure& why) noexcept;
  void send_goodbyes() noexcept;

  const sdk::Host host_;
  const GroupContext c_;
  const bool stages_;
  const std::span<const bp_capability* const> capabilities_;
  GroupFailure failure_{[this] { poller_.wake(); }};
  Pool pool_;
  Departures departures_;
  Transport transport_;
  const std::unique_ptr<Communicator> comm_;
  const bp_native_api native_;
  DeviceMemory memory_;
  Collectives collectives_;
  Messages messages_;
  sdk::Poller poller_;  // after all that its thread uses
  BackgroundLauncher launcher_;
};

}  // namespace backplane::nccl
