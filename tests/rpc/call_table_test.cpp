// SPDX-License-Identifier: Apache-2.0
//
// Deadlines and failures of pending calls.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "rpc/call_table.hpp"

namespace backplane::core::rpc {
namespace {

class Expired {
 public:
  void add(uint64_t number) {
    const std::lock_guard lock(mutex_);
    numbers_.insert(number);
    changed_.notify_all();
  }
  // Waits until there are at least `count`.
  std::multiset<uint64_t> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [this, count] { return numbers_.size() >= count; });
    return numbers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::multiset<uint64_t> numbers_;
};

Call call_to(int32_t to) {
  Call call;
  call.to = to;
  return call;
}

TEST(RpcCallTableTest, EachPendingCallExpiresOnce) {
  constexpr int64_t kHour = INT64_C(3600) * 1000000000;
  Expired expired;
  CallTable calls([&expired](uint64_t number) { expired.add(number); });
  std::multiset<uint64_t> expected;
  std::vector<uint64_t> stay;
  for (int i = 0; i < 5000; ++i) {
    const uint64_t ended = calls.add(call_to(0), Deadline::after(kHour - i));  // later calls have earlier deadlines
    EXPECT_TRUE(calls.take(ended));
    if (i % 2 == 0) stay.push_back(calls.add(call_to(0), i % 4 == 0 ? Deadline::never() : Deadline::after(kHour)));
    if (i % 2 == 0) calls.fail_at(stay.back(), 1, Error(BP_PEER_LOST, "another lost"), Deadline::after(0));
    if (i % 3 == 0) expected.insert(calls.add(call_to(0), Deadline::after(i % 100 * 10000)));
    if (i % 5 == 0) expected.insert(calls.add(call_to(1), i % 2 == 0 ? Deadline::never() : Deadline::after(kHour)));
    if (i % 7 == 0) {
      const uint64_t failing = calls.add(call_to(0), Deadline::after(kHour));
      calls.fail_at(failing, 0, Error(BP_PEER_LOST, "lost"), Deadline::after(kHour / 2));
      calls.fail_at(failing, 0, Error(BP_PEER_LOST, "lost"), Deadline::after(1000));
      expected.insert(failing);
    }
  }
  calls.fail_all_at(1, Error(BP_PEER_LOST, "lost"), Deadline::after(0));
  EXPECT_EQ(expired.wait_for(expected.size()), expected);
  for (const uint64_t number : stay) EXPECT_TRUE(calls.take(number));
  for (const uint64_t number : expected) EXPECT_TRUE(calls.take(number));
  EXPECT_EQ(calls.counts().active, 0U);
  calls.stop();
  EXPECT_EQ(expired.wait_for(0), expected);
}

// A failure of all calls to a worker covers the present ones; the earliest failure counts.
TEST(RpcCallTableTest, CallsFailWithTheFailureOfTheirPeer) {
  constexpr int64_t kHour = INT64_C(3600) * 1000000000;
  Expired expired;
  CallTable calls([&expired](uint64_t number) { expired.add(number); });
  const auto why = [&calls](uint64_t number) {
    const std::optional<Call> call = calls.take(number);
    return call && call->failure ? std::string(call->failure->what()) : "";
  };
  std::multiset<uint64_t> first;
  for (int i = 0; i < 1000; ++i) first.insert(calls.add(call_to(1), Deadline::never()));
  const uint64_t to_another = calls.add(call_to(2), Deadline::never());
  const uint64_t later = calls.add(call_to(1), Deadline::never());
  calls.fail_all_at(1, Error(BP_PEER_LOST, "a connection broke"), Deadline::after(kHour));
  const uint64_t after = calls.add(call_to(1), Deadline::never());
  calls.fail_all_at(1, Error(BP_PEER_LOST, "it died"), Deadline::after(0), *first.rbegin());
  EXPECT_EQ(expired.wait_for(first.size()), first);
  for (const uint64_t number : first) EXPECT_EQ(why(number), "it died");
  EXPECT_EQ(why(later), "a connection broke");
  EXPECT_EQ(why(to_another), "");
  EXPECT_EQ(why(after), "");
  calls.stop();
}

}  // namespace
}  // namespace backplane::core::rpc
