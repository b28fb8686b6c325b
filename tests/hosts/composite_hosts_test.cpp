// SPDX-License-Identifier: Apache-2.0
//
// A job on two hosts with two ranks each, over a composite: collectives, and a killed rank, which all survivors name
// whether it was on their host or not.
#include <gtest/gtest.h>

#include "hosts/network.hpp"

namespace backplane::test {
namespace {

constexpr int kRanks = 4;

class CompositeHostsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string obstacle = Network::obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
    network_ = std::make_unique<Network>(2);
    Variables common = {
        {"BACKPLANE_BACKEND", GetParam()},       {"MASTER_ADDR", Network::address(0)},
        {"WORLD_SIZE", std::to_string(kRanks)},  {"BACKPLANE_JOB_ID", ""},
        {"BACKPLANE_STORE_HOSTED", "1"},         {"BACKPLANE_IMAGINED_HOSTS", "a,b,b,a"},  // one process id namespace
        {"TEST_SERVE_HOST", Network::address(0)}};
    server_ = std::make_unique<Process>(common, network_->on(0));
    const std::string answer = server_->call("serve");
    ASSERT_TRUE(answer.starts_with("port ")) << answer;
    common["MASTER_PORT"] = answer.substr(sizeof "port");
    for (int number = 0; number < kRanks; ++number) {
      common["RANK"] = std::to_string(number);
      ranks_.push_back(std::make_unique<Process>(common, network_->on(host_of(number))));
    }
    send({0, 1, 2, 3}, "init");
    expect_all({0, 1, 2, 3}, "ok");
  }

  static int host_of(int number) { return number == 1 || number == 2 ? 1 : 0; }
  Process& rank(int number) { return *ranks_[static_cast<size_t>(number)]; }
  void send(const std::vector<int>& ranks, const std::string& command) {
    for (const int number : ranks) rank(number).send(command);
  }
  void expect_all(const std::vector<int>& ranks, const std::string& answer) {
    for (const int number : ranks) EXPECT_EQ(rank(number).receive(), answer) << "rank " << number;
  }
  void quit(const std::vector<int>& ranks) {
    send(ranks, "quit");
    for (const int number : ranks) {
      EXPECT_EQ(rank(number).receive(), "ok");
      EXPECT_EQ(rank(number).wait(), 0);
    }
  }

  std::unique_ptr<Network> network_;
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> ranks_;
};
#ifdef BACKPLANE_TEST_shm
#ifdef BACKPLANE_TEST_zmq
INSTANTIATE_TEST_SUITE_P(Zmq, CompositeHostsTest, testing::Values("shm+zmq"));
#endif
#ifdef BACKPLANE_TEST_gloo
INSTANTIATE_TEST_SUITE_P(Gloo, CompositeHostsTest, testing::Values("shm+gloo"));
#endif
#endif
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CompositeHostsTest);

TEST_P(CompositeHostsTest, ExchangesMessagesAndNamesAKilledRank) {
  send({0, 1, 2, 3}, "traffic 100");
  expect_all({0, 1, 2, 3}, "ok");
  send({0, 1, 2, 3}, "all_reduce");
  for (const int number : {0, 1, 2, 3}) EXPECT_TRUE(rank(number).receive().starts_with("sum ")) << "rank " << number;
  const std::string expected = "error 5 2 rank 2 (" + Network::name(1) + ", pid " + std::to_string(rank(2).pid()) +
                               ") is lost: its process ended";
  send({0, 1, 2, 3}, "flood");
  rank(2).kill();
  expect_all({0, 1, 3}, expected);
  send({0, 1, 3}, "shrink");
  for (const int number : {0, 1, 3}) {
    EXPECT_TRUE(rank(number).receive().starts_with("shrunk ")) << "rank " << number;
  }
  send({0, 1, 3}, "all_reduce");
  expect_all({0, 1, 3}, "sum 3");
  quit({0, 1, 3});
}

}  // namespace
}  // namespace backplane::test
