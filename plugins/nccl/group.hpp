// SPDX-License-Identifier: Apache-2.0
//
// One rank on one device: its communicator, its collectives, its messages, and the thread that keeps them going.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "backplane/abi/ext/native.h"
#include "backplane/base/grace.hpp"
#include "backplane/sdk/sdk.hpp"
#include "collectives.hpp"
#include "memory.hpp"
#include "messages.hpp"
#include "wire.hpp"

namespace backplane::nccl {

class Group final : public sdk::ProcessGroup {
 public:
  // What the group can do; empty: all that the backend declares.
  using Offer = std::span<const bp_capability* const> (*)(bool stages, bool reduces_f8);

  // Blocks until all ranks have come.
  Group(const sdk::Context& context, Offer offer);
  ~Group() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  std::span<const bp_capability* const> capabilities() const noexcept override { return capabilities_; }
  const void* extension(std::string_view id) override;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kGrace{base::grace::kBrokenConnection / base::grace::kMillisecond};
  // How long operations in flight may continue after a peer has left in an orderly way.
  static constexpr auto kFarewell = std::chrono::seconds(2);

  Group(const sdk::Context& context, Offer offer, const sdk::Deadline& deadline);
  void require_here(const bp_buffer& buffer) const;
  void arrived(int32_t peer, const Frame& frame);
  bool progress(sdk::Poller::Sleep& sleep);
  void end_of(int32_t peer);
  const char* how_it_left(int32_t peer) const;
  std::chrono::milliseconds grace(int32_t peer) const;
  void stop_device() noexcept;
  void launch_behind() noexcept;
  void broken(const sdk::Failure& why) noexcept;
  void say_goodbye() noexcept;

  const Api& api_;
  const sdk::Host host_;
  const int device_;
  const int32_t rank_;
  const int32_t size_;
  const bool stages_;
  const std::span<const bp_capability* const> capabilities_;
  Fate fate_{[this] { poller_.wake(); }};
  Pool pool_;
  std::vector<bool> said_goodbye_;             // of the poller's thread, as the three below
  std::map<int32_t, Clock::time_point> gone_;  // peers whose connection has ended
  bool is_on_device_ = false;
  bool stopped_ = false;
  std::atomic<int32_t> first_lost_ = -1;  // the first peer that went without a word
  Wire wire_;
  const std::unique_ptr<Communicator> comm_;
  const bp_native_api native_;
  DeviceMemory memory_;
  Collectives collectives_;
  Messages messages_;
  sdk::Poller poller_;  // the last ones, for their threads use all of the above
  const sdk::Failure no_launcher_{BP_RESOURCE, "nccl: there is no memory for the thread that launches collectives"};
  std::mutex launcher_mutex_;
  std::optional<sdk::Poller> launcher_;  // once a launch has not come to its end in submit
};

}  // namespace backplane::nccl
