// SPDX-License-Identifier: Apache-2.0
#include "sleep.hpp"

#include <algorithm>

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

TimePoint deadline_after(int64_t timeout_ns) {
  constexpr int64_t kYear = INT64_C(365) * 86400 * 1000000000;  // the clock would overflow far beyond it
  return timeout_ns < 0 || timeout_ns > kYear ? TimePoint::max() : Clock::now() + std::chrono::nanoseconds(timeout_ns);
}

TimePoint bounded(TimePoint until) { return std::min(until, Clock::now() + std::chrono::hours(24)); }

bool poll_until(std::vector<pollfd>& polled, TimePoint until) {
  for (pollfd& each : polled) each.revents = 0;
  const auto left = std::max<std::chrono::nanoseconds>(bounded(until) - Clock::now(), std::chrono::nanoseconds(0));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout = {seconds.count(), (left - seconds).count()};
  return ppoll(polled.data(), polled.size(), &timeout, nullptr) > 0;
}

DescriptorSleep::DescriptorSleep(const base::EventFd& wake, const std::vector<int>& descriptors,
                                 std::chrono::nanoseconds poll)
    : wake_(wake), polled_{{wake.get(), POLLIN, 0}}, spin_policy_(poll) {
  for (const int descriptor : descriptors) polled_.push_back({descriptor, POLLIN, 0});
}

void DescriptorSleep::sleep(std::unique_lock<std::mutex>& lock, TimePoint until, bool polls) {
  is_asleep_ = true;
  until_ = until;
  lock.unlock();
  // Polling yields the processor to libzmq's threads.
  if (!polls || !spin_policy_.poll(until, [this] { return poll_until(polled_, {}); })) poll_until(polled_, until);
  if (polled_[0].revents != 0) wake_.clear();
  lock.lock();
  is_asleep_ = false;
}

void DescriptorSleep::wake(TimePoint due) {
  if (is_asleep_ && due < until_) wake_.raise();
}

}  // namespace backplane::zmq
