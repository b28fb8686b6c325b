// SPDX-License-Identifier: Apache-2.0
//
// A worker with another rank than in its default group fails all workers; mismatched.cpp has the checks.
#include "rpc/processes.hpp"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

TEST(RpcJoinTest, RankOtherThanInTheDefaultGroupFailsAll) {
  const std::vector<int> statuses = run_ranks(2, {BACKPLANE_TEST_MISMATCHED, built_backends().back()});
  for (const int status : statuses) EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace backplane::test
