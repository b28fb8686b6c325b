// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <new>

namespace backplane::nccl {

void BackgroundLauncher::launch() noexcept {
  const std::lock_guard lock(mutex_);
  if (thread_) return thread_->wake();
  const auto progress = [this](sdk::Poller::Sleep& sleep) {
    if (collectives_.advance()) sleep.at_most(sdk::Poller::kShortestPause);
    sleep.until_woken();
    return false;
  };
  try {
    thread_.emplace(on_device(c_.api, c_.device, progress), on_failure_);
  } catch (const sdk::Failure& why) {
    c_.failure.set(why);
  } catch (const std::bad_alloc&) {
    c_.failure.set(no_memory_);
  }
}

}  // namespace backplane::nccl
