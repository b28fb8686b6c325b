// SPDX-License-Identifier: Apache-2.0
//
// A worker is killed: its callers hear of it, and who it was, within 2 s, and the others go on.
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

TEST_P(RpcDeathTest, IsNamedAndSurvived) {
  const bool agent = is_own_agent(GetParam());
  const std::vector<int> statuses =
      run_ranks(3, {BACKPLANE_TEST_MORTAL, agent ? GetParam() : "process_group", agent ? "gloo" : GetParam()});
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0)
        << "rank " << rank << ": status " << statuses[rank];
  }
  EXPECT_TRUE(WIFSIGNALED(statuses[2]) && WTERMSIG(statuses[2]) == SIGKILL);
}

}  // namespace
}  // namespace backplane::test
