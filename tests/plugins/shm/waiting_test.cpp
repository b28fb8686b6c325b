// SPDX-License-Identifier: Apache-2.0
#include "waiting.hpp"

#include <gtest/gtest.h>

namespace backplane::shm::test {
namespace {

// A quick look may leave something out, which nobody rings for again.
TEST(Waiting, LooksFullyBeforeItSleepsOrGivesUp) {
  Bell bell = {};
  Waiting waiting(bell, nullptr, Patience{20'000, 20'000});
  for (const int64_t timeout_ns : {INT64_C(0), INT64_C(10'000), INT64_C(5'000'000)}) {
    Look last = Look::kQuick;
    bool has_slept_badly = false;
    const auto ready = [&](Look look) {
      has_slept_badly = has_slept_badly || (bell.sleepers.load() > 0 && look == Look::kQuick);
      last = look;
      return false;
    };
    Limit limit(timeout_ns);
    EXPECT_EQ(waiting.until(limit, ready), End::kLate);
    EXPECT_EQ(last, Look::kFull);
    EXPECT_FALSE(has_slept_badly);
  }
}

}  // namespace
}  // namespace backplane::shm::test
