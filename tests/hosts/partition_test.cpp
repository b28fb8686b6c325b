// SPDX-License-Identifier: Apache-2.0
//
// Faults of the network between hosts that end, or that only one side observes: what share/doc/operations.md promises
// under "Faults between hosts".
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "hosts/hosts_job.hpp"

namespace backplane::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kVictim = 1;          // rank 0's host serves the store
constexpr double kErrorLimit = 40;  // seconds, far above the expected time

struct Outage {
  const char* name;
  void (Network::*begin)(int host);
  void (Network::*end)(int host);
};

void PrintTo(const Outage& outage, std::ostream* out) { *out << outage.name; }

constexpr Outage kOutages[] = {{"BothDirections", &Network::drop_packets, &Network::pass_packets},
                               {"Outgoing", &Network::drop_outgoing, &Network::pass_outgoing},
                               {"Incoming", &Network::drop_incoming, &Network::pass_incoming},
                               {"LinkDown", &Network::take_down, &Network::take_up}};

// Three hosts. Packets of the victim's host are lost.
class JobWithPartition {
 public:
  JobWithPartition(const std::string& backend, const std::string& limit) : job_(3, backend, limit) {}

  HostsJob* operator->() { return &job_; }

  // The network fails before the command begins, and for `length`. Returns the seconds from the fault to the reply of
  // the last rank.
  double run_during(const Outage& outage, std::chrono::seconds length, const std::string& command) {
    (job_.network().*outage.begin)(kVictim);
    const auto start = Clock::now();
    job_.send(job_.all(), command);
    std::this_thread::sleep_until(start + length);  // the length of the outage
    (job_.network().*outage.end)(kVictim);
    job_.expect_all(job_.all(), "ok");
    return seconds_since(start);
  }

  // These ranks must report that one of `accused` is lost.
  void expect_errors(const std::vector<int>& ranks, const std::vector<int>& accused) {
    const auto start = Clock::now();
    for (const int number : ranks) {
      const std::string reply = job_.rank(number).receive();
      const bool is_accused = std::any_of(accused.begin(), accused.end(), [&reply](int each) {
        return reply.starts_with("error 5 " + std::to_string(each) + " ");
      });
      EXPECT_TRUE(is_accused) << "rank " << number << ": " << reply;
    }
    const double seconds = seconds_since(start);
    EXPECT_LT(seconds, kErrorLimit);
    std::printf("errors after %.1f s\n", seconds);
  }

  // The ranks that are left go on.
  void expect_shrinks() {
    const std::vector<int> rest = job_.others(kVictim);
    job_.send(rest, "shrink");
    EXPECT_EQ(job_.rank(0).receive(), "shrunk 0 of 2: 0 2");
    EXPECT_EQ(job_.rank(2).receive(), "shrunk 1 of 2: 0 2");
    job_.send(rest, "all_reduce");
    job_.expect_all(rest, "sum 2");
  }

 private:
  HostsJob job_;
};

class PartitionTest : public testing::TestWithParam<std::tuple<std::string, Outage>> {
 protected:
  void SetUp() override {
    const std::string obstacle = Network::obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
  }
  std::string backend() const { return std::get<0>(GetParam()); }
  Outage outage() const { return std::get<1>(GetParam()); }
};

const auto name_of_partition = [](const auto& tested) {
  return std::get<0>(tested.param) + std::get<1>(tested.param).name;
};
#ifdef BACKPLANE_TEST_zmq
INSTANTIATE_TEST_SUITE_P(Zmq, PartitionTest, testing::Combine(testing::Values("zmq"), testing::ValuesIn(kOutages)),
                         name_of_partition);
#endif
#ifdef BACKPLANE_TEST_gloo
INSTANTIATE_TEST_SUITE_P(Gloo, PartitionTest, testing::Combine(testing::Values("gloo"), testing::ValuesIn(kOutages)),
                         name_of_partition);
#endif

TEST_P(PartitionTest, LosesNothingWithinAThirdOfTheHeartbeatLimit) {
  JobWithPartition job(backend(), "30s");
  for (const std::chrono::seconds length : {std::chrono::seconds(1), std::chrono::seconds(10)}) {
    const double seconds = job.run_during(outage(), length, "traffic 50");
    std::printf("%s, %s of %d s: ended %.1f s later\n", backend().c_str(), outage().name,
                static_cast<int>(length.count()), seconds - static_cast<double>(length.count()));
  }
  job->quit(job->all());
}

TEST_P(PartitionTest, LosesTheRankAfterTheHeartbeatLimit) {
  JobWithPartition job(backend(), "2s");
  const auto start = Clock::now();
  (job->network().*outage().begin)(kVictim);
  job->send(job->all(), "flood");
  for (const int number : job->all()) {
    const std::string reply = job->rank(number).receive();
    const std::string accused = number == kVictim ? "error 5 " : "error 5 1 ";
    EXPECT_TRUE(reply.starts_with(accused)) << "rank " << number << ": " << reply;
    EXPECT_NE(reply.find("no heartbeat from it for 2 s"), std::string::npos) << reply;
  }
  const double seconds = seconds_since(start);
  EXPECT_LT(seconds, kErrorLimit);
  std::printf("%s, %s: errors on all ranks after %.1f s\n", backend().c_str(), outage().name, seconds);
  (job->network().*outage().end)(kVictim);
  job.expect_shrinks();
  EXPECT_TRUE(job->rank(kVictim).call("all_reduce").starts_with("error 5 "));  // it does not return to the job
  job->quit(job->all());
}

class HalfOpenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string obstacle = Network::obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};
#ifdef BACKPLANE_TEST_zmq
INSTANTIATE_TEST_SUITE_P(Zmq, HalfOpenTest, testing::Values("zmq"));
#endif
#ifdef BACKPLANE_TEST_gloo
INSTANTIATE_TEST_SUITE_P(Gloo, HalfOpenTest, testing::Values("gloo"));
#endif

constexpr const char* kNoReset = "the kernel does not end connections on request (CONFIG_INET_DIAG_DESTROY)";

TEST_P(HalfOpenTest, AResetEndsTheGroupOnAllRanks) {
  JobWithPartition job(GetParam(), "30s");
  if (!job->network().reset_connections(kVictim, 2)) GTEST_SKIP() << kNoReset;
  job->send(job->all(), "flood");
  job.expect_errors(job->all(), {1, 2});
  job->quit(job->all());
}

// Rank 2 learns from a reset by a kernel that no longer knows the connection.
TEST_P(HalfOpenTest, AHalfOpenConnectionEndsTheGroupOnAllRanks) {
  JobWithPartition job(GetParam(), "30s");
  job->network().drop_packets(kVictim);
  if (!job->network().reset_connections(kVictim, 2)) GTEST_SKIP() << kNoReset;
  job->network().pass_packets(kVictim);
  job->send(job->all(), "flood");
  job.expect_errors(job->all(), {1, 2});
  job->quit(job->all());
}

// As after a power failure and a quick reboot: no packet tells that the process has ended.
TEST_P(HalfOpenTest, AHostThatRestartsIsLost) {
  JobWithPartition job(GetParam(), "2s");
  job->network().drop_packets(kVictim);
  for (const int peer : {0, 2}) {
    if (!job->network().reset_connections(kVictim, peer)) GTEST_SKIP() << kNoReset;
  }
  job->rank(kVictim).kill();
  job->network().pass_packets(kVictim);
  const std::vector<int> rest = job->others(kVictim);
  job->send(rest, "flood");
  job.expect_errors(rest, {kVictim});
  job.expect_shrinks();
  job->quit(rest);
}

}  // namespace
}  // namespace backplane::test
