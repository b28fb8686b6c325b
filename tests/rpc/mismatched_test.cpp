// SPDX-License-Identifier: Apache-2.0
//
// A worker that contradicts its default group does not block the others; mismatched.cpp has the checks.
#include "rpc/processes.hpp"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

TEST(RpcJoinTest, ARankThatIsNotTheDefaultGroupsFailsOnAll) {
  const std::vector<int> statuses = run_ranks(2, {BACKPLANE_TEST_MISMATCHED, built_backends().back()});
  for (const int status : statuses) EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace backplane::test
