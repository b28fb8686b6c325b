// SPDX-License-Identifier: Apache-2.0
//
// Master-worker mode between processes; commands.cpp has the checks.
#include "rpc/processes.hpp"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

TEST(MasterWorkerTest, FailedCommandsDoNotBlockOthers) {
  const std::string backend = built_backends().back();
  const std::vector<int> statuses = run_ranks(3, {BACKPLANE_TEST_COMMANDS, backend});
  for (const int status : statuses) EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace backplane::test
