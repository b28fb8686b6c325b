// SPDX-License-Identifier: Apache-2.0
//
// A worker is killed: its callers hear of it, and who it was, within 2 s, and the others go on.
#include <string>
#include <vector>

#include "rpc/processes.hpp"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

class RpcDeathTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcDeathTest, testing::ValuesIn([] {
                           std::vector<std::string> backends = rpc_ways();
                           backends.erase(backends.begin());  // inproc joins no processes
                           return backends;
                         }()),
                         [](const auto& info) { return info.param; });

// Three processes, one of which dies; the others say by their status whether all went well.
void expect_survived(const std::string& way, size_t mortal, const std::vector<std::string>& more) {
  const bool agent = is_own_agent(way);
  std::vector<std::string> words = {BACKPLANE_TEST_MORTAL, agent ? way : "process_group", agent ? "gloo" : way};
  words.insert(words.end(), more.begin(), more.end());
  const std::vector<int> statuses = run_ranks(3, words);
  for (size_t rank = 0; rank < 3; ++rank) {
    if (rank == mortal) continue;
    EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0)
        << "rank " << rank << ": status " << statuses[rank];
  }
  EXPECT_TRUE(WIFSIGNALED(statuses[mortal]) && WTERMSIG(statuses[mortal]) == SIGKILL) << statuses[mortal];
}

TEST_P(RpcDeathTest, IsNamedAndSurvived) { expect_survived(GetParam(), 2, {}); }

TEST(MasterWorkerTest, TheDeathOfAWorkerIsNamedAndSurvived) { expect_survived(rpc_ways().back(), 2, {"master"}); }

TEST(MasterWorkerTest, TheDeathOfTheMasterEndsItsWorkers) { expect_survived(rpc_ways().back(), 0, {"masterless"}); }

}  // namespace
}  // namespace backplane::test
