// SPDX-License-Identifier: Apache-2.0
//
// Programs that end without destroying what they made: what they sent arrives.
#include <gtest/gtest.h>

#include "support/groups.hpp"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

Outcome run_ranks(int count, const std::string& backend, const std::string& how,
                  const std::map<std::string, std::string>& environment = {}) {
  return run({"run", "-n", std::to_string(count), "--backend", backend, BACKPLANE_TEST_EXIT_RANK, how},
             {.environment = environment});
}

class ExitTest : public testing::TestWithParam<std::string> {
 protected:
  void expect_success(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ExitTest, testing::ValuesIn(process_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(ExitTest, MessagesArriveAfterMainReturned) {
  for (int round = 0; round < 5; ++round) expect_success(run_ranks(4, GetParam(), "return"));
}

TEST_P(ExitTest, MessagesArriveAfterExitOnAnotherThread) {
  for (int round = 0; round < 2; ++round) expect_success(run_ranks(4, GetParam(), "exit"));
}

TEST_P(ExitTest, AStaticObjectMayHoldTheGroup) { expect_success(run_ranks(4, GetParam(), "static")); }

TEST_P(ExitTest, LayersEndAsWell) {
  ScopedDirectory directory;
  expect_success(
      run_ranks(4, GetParam(), "return", {{"BACKPLANE_LAYERS", "trace?file=" + directory.file("%r-%g.prom")}}));
  EXPECT_TRUE(contains(read_file(directory.file("1-world.prom")), "recv"));
}

// The process ends although a thread is in a call, which does not fail.
TEST_P(ExitTest, AThreadMayWaitForAMessage) { expect_success(run_ranks(2, GetParam(), "busy")); }

TEST_P(ExitTest, RepliesOfWorkersArrive) {
  for (int round = 0; round < 3; ++round) {
    expect_success(run_ranks(4, GetParam(), "call", {{"BACKPLANE_RPC_BACKEND", "process_group"}}));
  }
}

#ifdef BACKPLANE_TEST_zmq
TEST(ExitRpcTest, RepliesOverZmqArrive) {
  for (int round = 0; round < 3; ++round) {
    const Outcome outcome = run_ranks(4, "zmq", "call", {{"BACKPLANE_RPC_BACKEND", "zmq"}});
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  }
}
#endif

}  // namespace
}  // namespace backplane::test
