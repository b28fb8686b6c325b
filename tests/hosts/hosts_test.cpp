// SPDX-License-Identifier: Apache-2.0
//
// A job on four hosts, one rank on each: ranks are killed, links cut, packets dropped. All survivors name the same
// rank, and a rank that is cut off reports that.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "hosts/network.hpp"

namespace backplane::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHosts = 4;
constexpr double kKillLimit = 2;  // seconds until all have returned
constexpr double kCutLimit = 3;   // the heartbeat limit and a second

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The store is served beside rank 0, by a process of its own.
class HostsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string obstacle = Network::obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
    network_ = std::make_unique<Network>(kHosts);
    Variables common = {{"BACKPLANE_BACKEND", GetParam() + "?iface=eth0"},
                        {"MASTER_ADDR", Network::address(0)},
                        {"WORLD_SIZE", std::to_string(kHosts)},
                        {"BACKPLANE_JOB_ID", ""},
                        {"BACKPLANE_STORE_HOSTED", "1"},
                        {"BACKPLANE_HEARTBEAT_LIMIT", "2s"},
                        {"TEST_SERVE_HOST", Network::address(0)}};
    server_ = std::make_unique<Process>(common, network_->on(0));
    const std::string answer = server_->ask("serve");
    ASSERT_TRUE(answer.starts_with("port ")) << answer;
    common["MASTER_PORT"] = answer.substr(sizeof "port");
    for (int rank = 0; rank < kHosts; ++rank) {
      common["RANK"] = std::to_string(rank);
      ranks_.push_back(std::make_unique<Process>(common, network_->on(rank)));
    }
    tell({0, 1, 2, 3}, "init");
    expect_all({0, 1, 2, 3}, "ok");
    tell({0, 1, 2, 3}, "traffic 100");
    expect_all({0, 1, 2, 3}, "ok");
  }

  Process& rank(int number) { return *ranks_[static_cast<size_t>(number)]; }
  void tell(const std::vector<int>& ranks, const std::string& command) {
    for (const int number : ranks) rank(number).tell(command);
  }
  void expect_all(const std::vector<int>& ranks, const std::string& answer) {
    for (const int number : ranks) EXPECT_EQ(rank(number).hear(), answer) << "rank " << number;
  }
  void quit(const std::vector<int>& ranks) {
    tell(ranks, "quit");
    for (const int number : ranks) {
      EXPECT_EQ(rank(number).hear(), "ok");
      EXPECT_EQ(rank(number).wait(), 0);
    }
  }
  static std::vector<int> others(int without) {
    std::vector<int> ranks;
    for (int number = 0; number < kHosts; ++number) {
      if (number != without) ranks.push_back(number);
    }
    return ranks;
  }
  std::string lost(int number, const std::string& why) {
    return "error 5 " + std::to_string(number) + " rank " + std::to_string(number) + " (" + Network::name(number) +
           ", pid " + std::to_string(rank(number).pid()) + ") is lost: " + why;
  }

  // Cuts one host off while all ranks work, or all but that one; the survivors go on without it.
  void cut_off(int victim, const std::string& its_work, const std::function<void()>& cut) {
    const std::vector<int> rest = others(victim);
    tell(rest, "flood");
    rank(victim).tell(its_work);
    const auto start = Clock::now();
    cut();
    expect_all(rest, lost(victim, "no heartbeat from it for 2 s; it may be suspended, or its network down"));
    const double told = seconds_since(start);
    EXPECT_LT(told, kCutLimit);
    const std::string own = rank(victim).hear();
    const double own_told = seconds_since(start);
    EXPECT_TRUE(own.starts_with("error 5 -1 the store at tcp://" + Network::address(0))) << own;
    EXPECT_LT(own_told, kCutLimit);
    std::printf("over %s the survivors were told after %.3f s, who was cut off after %.3f s\n", GetParam().c_str(),
                told, own_told);
    tell(rest, "shrink");
    std::string members;
    for (const int number : rest) members += " " + std::to_string(number);
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rank(rest[i]).hear(), "shrunk " + std::to_string(i) + " of 3:" + members);
    }
    tell(rest, "all_reduce");
    expect_all(rest, "sum 3");
    quit({0, 1, 2, 3});
  }

  std::unique_ptr<Network> network_;
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> ranks_;
};
#ifdef BACKPLANE_TEST_zmq
INSTANTIATE_TEST_SUITE_P(Zmq, HostsTest, testing::Values("zmq"));
#endif
#ifdef BACKPLANE_TEST_gloo
INSTANTIATE_TEST_SUITE_P(Gloo, HostsTest, testing::Values("gloo"));
#endif

TEST_P(HostsTest, WhoIsKilledAtWorkIsNamed) {
  const std::string expected = lost(2, "its process ended");
  tell({0, 1, 2, 3}, "flood");
  const auto start = Clock::now();
  rank(2).kill();
  expect_all({0, 1, 3}, expected);
  EXPECT_LT(seconds_since(start), kKillLimit);
  tell({0, 1, 3}, "barrier");
  expect_all({0, 1, 3}, expected);
  quit({0, 1, 3});
}

TEST_P(HostsTest, WhoIsKilledIdleIsNamed) {
  const std::string expected = lost(3, "its process ended");
  tell({0, 1, 2}, "all_reduce");
  const auto start = Clock::now();
  rank(3).kill();
  expect_all({0, 1, 2}, expected);
  EXPECT_LT(seconds_since(start), kKillLimit);
  quit({0, 1, 2});
}

TEST_P(HostsTest, TheRootBesideTheStoreIsNamed) {
  const std::string expected = lost(0, "its process ended");
  tell({1, 2, 3}, "broadcast 0");
  const auto start = Clock::now();
  rank(0).kill();
  expect_all({1, 2, 3}, expected);
  EXPECT_LT(seconds_since(start), kKillLimit);
  quit({1, 2, 3});
}

TEST_P(HostsTest, APulledCable) {
  cut_off(2, "flood", [this] { network_->pull_cable(2); });
}

TEST_P(HostsTest, AnInterfaceTakenDown) {
  cut_off(1, "flood", [this] { network_->take_down(1); });
}

TEST_P(HostsTest, ABlackHole) {
  cut_off(3, "recv 0", [this] { network_->swallow(3); });
}

TEST_P(HostsTest, TheHostOfTheStoreIsCutOff) {
  tell({0, 1, 2, 3}, "flood");
  const auto start = Clock::now();
  network_->swallow(0);
  for (const int number : {1, 2, 3}) {
    const std::string answer = rank(number).hear();
    EXPECT_TRUE(answer.starts_with("error 5 -1 the store at tcp://" + Network::address(0))) << answer;
  }
  const std::string beside = rank(0).hear();  // hears from the store that the others are gone
  EXPECT_TRUE(beside.starts_with("error 5 ")) << beside;
  EXPECT_NE(beside.find("no heartbeat from it for 2 s"), std::string::npos) << beside;
  EXPECT_LT(seconds_since(start), kCutLimit);
  quit({0, 1, 2, 3});
}

}  // namespace
}  // namespace backplane::test
