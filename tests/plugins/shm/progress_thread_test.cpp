// SPDX-License-Identifier: Apache-2.0
#include "progress_thread.hpp"

#include <gtest/gtest.h>

#include <new>
#include <string>

#include "support/eventually.hpp"
#include "support/failures.hpp"

namespace backplane::shm::test {
namespace {

// A failure on the thread aborts the group, not the process.
TEST(ProgressThread, AbortsWithItsFailure) {
  Doorbell doorbell = {};
  const sdk::Interruption interruption;
  Waiter waiter(doorbell, nullptr, WaitPolicy{0, 0}, interruption);
  ProgressThread progress_thread(waiter, [] { throw std::bad_alloc(); });
  progress_thread.operation_started();
  EXPECT_TRUE(backplane::test::eventually([&waiter] { return waiter.aborted(); })) << "the group was not aborted";
  EXPECT_EQ(backplane::test::status_of<sdk::Failure>([&waiter] { waiter.check(); }), BP_RESOURCE);
}

}  // namespace
}  // namespace backplane::shm::test
