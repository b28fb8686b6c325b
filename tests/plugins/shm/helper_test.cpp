// SPDX-License-Identifier: Apache-2.0
#include "helper.hpp"

#include <gtest/gtest.h>

#include <new>
#include <string>

#include "support/eventually.hpp"
#include "support/failures.hpp"

namespace backplane::shm::test {
namespace {

// What goes wrong on its thread ends the waiting of all, and not the process.
TEST(Helper, TellsWhatItFailsWith) {
  Bell bell = {};
  Waiting waiting(bell, nullptr, Patience{0, 0});
  Helper helper(waiting, [] { throw std::bad_alloc(); });
  helper.begin();
  EXPECT_TRUE(backplane::test::eventually([&waiting] { return waiting.aborted(); })) << "nothing was said";
  EXPECT_EQ(backplane::test::status_of<sdk::Failure>([&waiting] { waiting.check(); }), BP_RESOURCE);
}

}  // namespace
}  // namespace backplane::shm::test
