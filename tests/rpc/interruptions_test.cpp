// SPDX-License-Identifier: Apache-2.0
//
// Shutdown uses the thread's count of interruptions to distinguish them from other failures with BP_CANCELLED.
#include <gtest/gtest.h>

#include <thread>

#include "error.hpp"
#include "interrupt.hpp"
#include "support/failures.hpp"

namespace backplane::core {
namespace {

TEST(InterruptibleTest, CountsInterruptionsPerThread) {
  static int32_t answer = 0;
  set_interrupt_hook([](void*) { return answer; }, nullptr);
  const Interruptible interruptible;
  const uint64_t before = Interruptible::interruptions();
  Interruptible::check();
  EXPECT_EQ(Interruptible::interruptions(), before);
  answer = 1;
  EXPECT_EQ(test::status_of<Error>([] { Interruptible::check(); }), BP_CANCELLED);
  EXPECT_EQ(Interruptible::interruptions(), before + 1);
  std::thread([] { EXPECT_EQ(Interruptible::interruptions(), 0U); }).join();
  set_interrupt_hook(nullptr, nullptr);
}

}  // namespace
}  // namespace backplane::core
