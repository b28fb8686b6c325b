// SPDX-License-Identifier: Apache-2.0
//
// The thread that launches collectives whose launch outlasts their submit. It is separate from the group's poller,
// because CUDA may block it until the group is aborted.
#pragma once

#include <functional>
#include <mutex>
#include <optional>

#include "backplane/sdk/poller.hpp"
#include "collectives.hpp"
#include "failure.hpp"

namespace backplane::nccl {

class BackgroundLauncher {
 public:
  // `on_failure` is called on the thread.
  BackgroundLauncher(const GroupContext& context, Collectives& collectives,
                     std::function<void(const sdk::Failure&)> on_failure)
      : c_(context), collectives_(collectives), on_failure_(std::move(on_failure)) {}

  // Makes the thread launch what `collectives` has. The first call starts it; the group fails if it cannot start.
  void launch() noexcept;

 private:
  const GroupContext c_;
  Collectives& collectives_;
  const std::function<void(const sdk::Failure&)> on_failure_;
  const sdk::Failure no_memory_{BP_RESOURCE, "nccl: out of memory for the thread that launches collectives"};
  std::mutex mutex_;
  std::optional<sdk::Poller> thread_;
};

}  // namespace backplane::nccl
