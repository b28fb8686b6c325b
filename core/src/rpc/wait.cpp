// SPDX-License-Identifier: Apache-2.0
#include "rpc/wait.hpp"

#include <chrono>

#include "backplane/base/executor.hpp"
#include "backplane/base/spin_policy.hpp"
#include "rpc/inbound_call.hpp"

namespace backplane::core::rpc {
namespace {

using base::Executor;
using base::SpinPolicy;

constexpr std::chrono::microseconds kBrief{40};

// The last wait of this thread.
struct LastWait {
  SpinPolicy::Clock::time_point begun;
  bool was_brief = false;
};
thread_local LastWait last_wait;

}  // namespace

void begin_wait() {
  last_wait.begun = SpinPolicy::Clock::now();
  if (!InboundCall::is_inherited()) Executor::begin_blocking();
}

void end_wait() {
  last_wait.was_brief = SpinPolicy::Clock::now() - last_wait.begun < kBrief;
  if (!InboundCall::is_inherited()) Executor::end_blocking();
}

bool wait_briefly(const std::function<bool()>& ready) {
  static SpinPolicy policy(kBrief);  // of all threads
  return last_wait.was_brief && policy.poll(SpinPolicy::Clock::time_point::max(), ready);
}

}  // namespace backplane::core::rpc
