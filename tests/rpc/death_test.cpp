// SPDX-License-Identifier: Apache-2.0
//
// A worker is killed: its callers hear of it, and who it was, within 2 s, and the others go on.
#include <spawn.h>
#include <sys/wait.h>

#include <array>

#include "rpc/workers.hpp"
#include "support/environment.hpp"

namespace backplane::test {
namespace {

pid_t spawn(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ), 0);
  return pid;
}

class RpcDeathTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcDeathTest, testing::ValuesIn([] {
                           std::vector<std::string> backends = rpc_ways();
                           backends.erase(backends.begin());  // inproc joins no processes
                           return backends;
                         }()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcDeathTest, IsNamedAndSurvived) {
  const StoreServer server("127.0.0.1", 0, "mortal");
  const ScopedVariable address("MASTER_ADDR", "127.0.0.1");
  const ScopedVariable port("MASTER_PORT", std::to_string(server.port()));
  const ScopedVariable world("WORLD_SIZE", "3");
  const ScopedVariable hosted("BACKPLANE_STORE_HOSTED", "1");
  const ScopedVariable job("BACKPLANE_JOB_ID", "mortal");
  std::array<pid_t, 3> pids{};
  for (int rank = 0; rank < 3; ++rank) {
    const ScopedVariable own("RANK", std::to_string(rank));
    const bool agent = GetParam() == "tensorpipe";
    pids[static_cast<size_t>(rank)] = spawn({BACKPLANE_TEST_MORTAL, std::to_string(rank),
                                             agent ? "tensorpipe" : "process_group", agent ? "gloo" : GetParam()});
  }
  for (int rank = 0; rank < 3; ++rank) {
    int status = -1;
    waitpid(pids[static_cast<size_t>(rank)], &status, 0);
    if (rank < 2) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": status " << status;
    } else {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
  }
}

}  // namespace
}  // namespace backplane::test
