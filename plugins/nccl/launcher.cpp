// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <new>
#include <utility>

namespace backplane::nccl {

void BackgroundLauncher::launch() noexcept {
  const std::lock_guard lock(mutex_);
  if (thread_) return thread_->wake();
  const auto progress = [this, is_on_device = false](sdk::Poller::Sleep& sleep) mutable {
    if (!std::exchange(is_on_device, true)) check(api_, api_.cuda.set_device(device_), "setting the current device");
    if (collectives_.advance()) sleep.at_most(sdk::Poller::kShortestPause);
    sleep.until_woken();
    return false;
  };
  try {
    thread_.emplace(progress, on_failure_);
  } catch (const sdk::Failure& why) {
    failure_.set(why);
  } catch (const std::bad_alloc&) {
    failure_.set(no_memory_);
  }
}

}  // namespace backplane::nccl
