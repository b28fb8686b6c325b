// SPDX-License-Identifier: Apache-2.0
//
// A job on four hosts with one rank each. Ranks are killed, links cut, packets dropped: all survivors name the same
// rank, and a disconnected rank reports the loss of the store.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "hosts/hosts_job.hpp"

namespace backplane::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHosts = 4;
constexpr double kKillLimit = 20;  // seconds until all survivors have returned
constexpr double kCutLimit = 20;   // seconds: the heartbeat limit, and time of a busy machine

class HostsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string obstacle = Network::obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
    job_ = std::make_unique<HostsJob>(kHosts, GetParam(), "2s");
  }

  Network& network() { return job_->network(); }
  Process& rank(int number) { return job_->rank(number); }
  void send(const std::vector<int>& ranks, const std::string& command) { job_->send(ranks, command); }
  void expect_all(const std::vector<int>& ranks, const std::string& reply) { job_->expect_all(ranks, reply); }
  void quit(const std::vector<int>& ranks) { job_->quit(ranks); }
  std::string lost(int number, const std::string& why) {
    return "error 5 " + std::to_string(number) + " rank " + std::to_string(number) + " (" + Network::name(number) +
           ", pid " + std::to_string(rank(number).pid()) + ") is lost: " + why;
  }

  // Disconnects a host while its rank runs `command` and the others exchange messages. The survivors then shrink the
  // group.
  void disconnect(int victim, const std::string& command, const std::function<void()>& cut) {
    const std::vector<int> rest = job_->others(victim);
    send(rest, "flood");
    rank(victim).send(command);
    const auto start = Clock::now();
    cut();
    expect_all(rest, lost(victim, "no heartbeat from it for 2 s; it may be suspended, or its network down"));
    const double survivors_took = seconds_since(start);
    EXPECT_LT(survivors_took, kCutLimit);
    const std::string own = rank(victim).receive();
    const double victim_took = seconds_since(start);
    EXPECT_TRUE(own.starts_with("error 5 -1 the store at tcp://" + Network::address(0))) << own;
    EXPECT_LT(victim_took, kCutLimit);
    std::printf("%s: error on the survivors after %.3f s, on the disconnected rank after %.3f s\n", GetParam().c_str(),
                survivors_took, victim_took);
    send(rest, "shrink");
    std::string members;
    for (const int number : rest) members += " " + std::to_string(number);
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rank(rest[i]).receive(), "shrunk " + std::to_string(i) + " of 3:" + members);
    }
    send(rest, "all_reduce");
    expect_all(rest, "sum 3");
    quit({0, 1, 2, 3});
  }

  std::unique_ptr<HostsJob> job_;
};
#ifdef BACKPLANE_TEST_zmq
INSTANTIATE_TEST_SUITE_P(Zmq, HostsTest, testing::Values("zmq"));
#endif
#ifdef BACKPLANE_TEST_gloo
INSTANTIATE_TEST_SUITE_P(Gloo, HostsTest, testing::Values("gloo"));
#endif

TEST_P(HostsTest, NamesARankKilledDuringTraffic) {
  const std::string expected = lost(2, "its process ended");
  send({0, 1, 2, 3}, "flood");
  const auto start = Clock::now();
  rank(2).kill();
  expect_all({0, 1, 3}, expected);
  EXPECT_LT(seconds_since(start), kKillLimit);
  send({0, 1, 3}, "barrier");
  expect_all({0, 1, 3}, expected);
  quit({0, 1, 3});
}

TEST_P(HostsTest, NamesARankKilledWhileIdle) {
  const std::string expected = lost(3, "its process ended");
  send({0, 1, 2}, "all_reduce");
  const auto start = Clock::now();
  rank(3).kill();
  expect_all({0, 1, 2}, expected);
  EXPECT_LT(seconds_since(start), kKillLimit);
  quit({0, 1, 2});
}

TEST_P(HostsTest, NamesTheKilledRootOnTheHostOfTheStore) {
  const std::string expected = lost(0, "its process ended");
  send({1, 2, 3}, "broadcast 0");
  const auto start = Clock::now();
  rank(0).kill();
  expect_all({1, 2, 3}, expected);
  EXPECT_LT(seconds_since(start), kKillLimit);
  quit({1, 2, 3});
}

TEST_P(HostsTest, NamesARankWhoseCableIsPulled) {
  disconnect(2, "flood", [this] { network().pull_cable(2); });
}

TEST_P(HostsTest, NamesARankWhoseInterfaceIsDown) {
  disconnect(1, "flood", [this] { network().take_down(1); });
}

TEST_P(HostsTest, NamesARankWhosePacketsAreDropped) {
  disconnect(3, "recv 0", [this] { network().drop_packets(3); });
}

TEST_P(HostsTest, NamesAllAfterTheHostOfTheStoreIsDisconnected) {
  send({0, 1, 2, 3}, "flood");
  const auto start = Clock::now();
  network().drop_packets(0);
  for (const int number : {1, 2, 3}) {
    const std::string answer = rank(number).receive();
    EXPECT_TRUE(answer.starts_with("error 5 -1 the store at tcp://" + Network::address(0))) << answer;
  }
  const std::string local = rank(0).receive();  // still connected to the store, which reports the others
  EXPECT_TRUE(local.starts_with("error 5 ")) << local;
  EXPECT_NE(local.find("no heartbeat from it for 2 s"), std::string::npos) << local;
  EXPECT_LT(seconds_since(start), kCutLimit);
  quit({0, 1, 2, 3});
}

}  // namespace
}  // namespace backplane::test
