// SPDX-License-Identifier: Apache-2.0
//
// Jobs over several nodes, as several launchers on the loopback interface.
#include <gtest/gtest.h>

#include "support/free_port.hpp"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

std::vector<std::string> node(int rank, const std::string& port, const std::vector<std::string>& program) {
  std::vector<std::string> words = {
      "run",           "-n", "2", "--nnodes", "2", "--node-rank", std::to_string(rank), "--master-addr", "127.0.0.1",
      "--master-port", port};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

TEST(Nodes, MeetThroughTheStoreOfNodeZero) {
  const std::string port = std::to_string(free_port());
  Command second(node(1, port, {BACKPLANE_TEST_RANK}));
  Command first(node(0, port, {BACKPLANE_TEST_RANK}));
  const Outcome outcomes[] = {first.wait(), second.wait()};
  EXPECT_EQ(outcomes[0].code, 0) << outcomes[0].err;
  EXPECT_EQ(outcomes[1].code, 0) << outcomes[1].err;
  EXPECT_EQ(count_lines(outcomes[0].out, "[1] word of 2"), 1U) << outcomes[0].out;
  EXPECT_EQ(count_lines(outcomes[1].out, "[3] word of 0"), 1U) << outcomes[1].out;
}

TEST(Nodes, MpichStartsInTheirRanks) {
  if (std::string(BACKPLANE_TEST_HYDRA).empty()) GTEST_SKIP() << "MPICH is not installed";
  const std::string port = std::to_string(free_port());
  Command second(node(1, port, {BACKPLANE_TEST_MPICH_RANK}));
  Command first(node(0, port, {BACKPLANE_TEST_MPICH_RANK}));
  const Outcome outcomes[] = {first.wait(), second.wait()};
  EXPECT_EQ(outcomes[0].code, 0) << outcomes[0].err;
  EXPECT_EQ(outcomes[1].code, 0) << outcomes[1].err;
  EXPECT_EQ(count_lines(outcomes[0].out, "[0] rank 0 of 4: the ranks add up to 6"), 1U) << outcomes[0].out;
  EXPECT_EQ(count_lines(outcomes[1].out, "[3] rank 3 of 4: the ranks add up to 6"), 1U) << outcomes[1].out;
}

// The ranks of node 1 use the store after those of node 0 have ended.
TEST(Nodes, StoreOutlivesTheRanksOfNodeZero) {
  const std::string port = std::to_string(free_port());
  const ScopedDirectory place;
  Command first(node(0, port, {"--job-id", "late", "sh", "-c", "echo $RANK of node $GROUP_RANK; exec 1>&-"}));
  ASSERT_TRUE(eventually([&first] { return count_lines(first.out(), "[1] 1 of node 0") == 1; }));
  // The two ranks of node 1 act as a world of two.
  const std::string rank = "RANK=$((RANK - 2)) WORLD_SIZE=2 " BACKPLANE_TEST_RANK;
  const Outcome second = run(node(1, port, {"--job-id", "late", "sh", "-c", rank}));
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(count_lines(second.out, "[2] word of 1"), 1U) << second.out;
  EXPECT_EQ(first.wait().code, 0);
}

TEST(Nodes, ReportAPortInUse) {
  const std::string port = std::to_string(free_port());
  Command first({"run", "-n", "1", "--master-port", port, "sh", "-c", "echo there; exec sleep 1000"});
  ASSERT_TRUE(eventually([&first] { return contains(first.out(), "there"); }));
  const Outcome second = run({"run", "-n", "1", "--master-port", port, "true"});
  EXPECT_EQ(second.code, 1);
  EXPECT_TRUE(contains(second.err, "backplane: cannot serve the job's store: ")) << second.err;
  EXPECT_TRUE(contains(second.err, port)) << second.err;
}

// A rank of another node, which only the launcher there sees end.
TEST(Nodes, ARankThatEndsBeforeItJoinsIsNamedOnAllNodes) {
  const std::string port = std::to_string(free_port());
  const std::vector<std::string> program = {"sh", "-c", "[ $RANK = 3 ] || echo init | " BACKPLANE_TEST_LIVENESS_RANK};
  Command second(node(1, port, program));
  Command first(node(0, port, program));
  const Outcome outcomes[] = {first.wait(), second.wait()};
  for (const auto& [node, rank] : {std::pair(0, "[0] "), std::pair(0, "[1] "), std::pair(1, "[2] ")}) {
    const std::string& out = outcomes[node].out;
    EXPECT_TRUE(contains(out, rank + std::string("error 5 3 rank 3 ("))) << out << outcomes[node].err;
    EXPECT_TRUE(contains(out, "its process exited with code 0 before it joined")) << out;
  }
}

}  // namespace
}  // namespace backplane::test
