// SPDX-License-Identifier: Apache-2.0
#include "helper.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <new>
#include <string>

namespace backplane::shm::test {
namespace {

// What goes wrong on its thread ends the waiting of all, and not the process.
TEST(Helper, TellsWhatItFailsWith) {
  Bell bell = {};
  Waiting waiting(bell, nullptr, Patience{0, 0});
  Helper helper(waiting, [] { throw std::bad_alloc(); });
  helper.begin();
  while (!waiting.aborted()) sched_yield();
  try {
    waiting.check();
    ADD_FAILURE() << "nothing was said";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_RESOURCE) << why.what();
  }
}

}  // namespace
}  // namespace backplane::shm::test
