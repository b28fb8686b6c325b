// SPDX-License-Identifier: Apache-2.0
//
// A worker is killed: its callers get an error that names it within 2 s, and the other workers continue.
#include <string>
#include <vector>

#include "rpc/processes.hpp"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

class RpcDeathTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcDeathTest, testing::ValuesIn([] {
                           std::vector<std::string> backends = rpc_transports();
                           backends.erase(backends.begin());  // inproc is for one process
                           return backends;
                         }()),
                         [](const auto& info) { return info.param; });

// Runs victim.cpp as three processes. `victim` is killed by SIGKILL; the others must exit with 0.
void expect_survived(const std::string& transport, size_t victim, const std::vector<std::string>& more) {
  const bool agent = has_own_connections(transport);
  std::vector<std::string> command = {BACKPLANE_TEST_VICTIM, agent ? transport : "process_group",
                                      agent ? "gloo" : transport};
  command.insert(command.end(), more.begin(), more.end());
  const std::vector<int> statuses = run_ranks(3, command);
  for (size_t rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0)
        << "rank " << rank << ": status " << statuses[rank];
  }
  EXPECT_TRUE(WIFSIGNALED(statuses[victim]) && WTERMSIG(statuses[victim]) == SIGKILL) << statuses[victim];
}

TEST_P(RpcDeathTest, IsNamedAndSurvived) { expect_survived(GetParam(), 2, {}); }

TEST(MasterWorkerTest, SurvivesTheDeathOfAWorker) { expect_survived(rpc_transports().back(), 2, {"master"}); }

TEST(MasterWorkerTest, WorkersEndAfterTheDeathOfTheMaster) {
  expect_survived(rpc_transports().back(), 0, {"masterless"});
}

}  // namespace
}  // namespace backplane::test
