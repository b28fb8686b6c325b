// SPDX-License-Identifier: Apache-2.0
//
// Ranks are killed and stopped at various moments: all survivors report the same error within seconds, over each
// backend. BACKPLANE_LIVENESS_TRIALS (20) is the number of ranks that are killed at random.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "liveness/job.hpp"
#include "store/store.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string lost(const std::string& who, int peer, const std::string& why = "its process ended") {
  return "error 5 " + std::to_string(peer) + " " + who + " is lost: " + why;
}

int trials() {
  const char* text = std::getenv("BACKPLANE_LIVENESS_TRIALS");
  return text == nullptr ? 20 : std::max(std::atoi(text), 1);
}

class LivenessTest : public testing::TestWithParam<std::string> {
 protected:
  void expect_all(const std::vector<std::string>& answers, const std::string& expected) {
    for (const std::string& answer : answers) EXPECT_EQ(answer, expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LivenessTest, testing::ValuesIn(process_backends()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Composites, LivenessTest, testing::ValuesIn(composite_backends()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

// The operations of the ranks when one of them dies.
struct Moment {
  const char* name;
  const char* survivors;  // "": they get the error from their next operation
  const char* victim;     // "": it is idle
};
constexpr Moment kMoments[] = {{"idle", "", ""},
                               {"in all_reduces", "flood", "flood"},
                               {"that the others wait for", "all_reduce", ""},
                               {"the root of a broadcast", "broadcast", ""},
                               {"the sender of a message", "recv", ""},
                               {"not making a group", "new_group", ""}};
constexpr double kLimit = 30;  // seconds until all survivors have returned: less than the heartbeat limit
const Variables kHeartbeatLimit = {{"BACKPLANE_HEARTBEAT_LIMIT", "60s"}};

// Kills one rank at that moment. Returns the seconds until all survivors have reported it.
double kill_at(const std::string& backend, const Moment& moment, int world, int victim, Host host) {
  SCOPED_TRACE(std::string(moment.name) + ", rank " + std::to_string(victim) + " of " + std::to_string(world) +
               (host == Host::kRankZero ? ", store in rank 0" : ""));
  Job job(backend, world, host, kHeartbeatLimit);
  job.init();
  const std::vector<int> rest = job.others({victim});
  const std::string expected = lost(job.name(victim), victim);
  if (*moment.victim != '\0') job[victim].send(moment.victim);
  if (*moment.survivors != '\0') {
    job.send(rest, std::string(moment.survivors) + " " + std::to_string(victim));
    std::this_thread::sleep_for(std::chrono::milliseconds(victim * 7));  // varies the moment
  }
  const auto start = Clock::now();
  job[victim].kill();
  const double dead = seconds_since(start);
  if (*moment.survivors == '\0') job.send(rest, "barrier");
  for (const std::string& answer : job.receive(rest)) EXPECT_EQ(answer, expected);
  const double took = seconds_since(start) - dead;
  for (const std::string& answer : job.call(rest, "barrier"))
    EXPECT_EQ(answer, expected);  // later operations report the same
  EXPECT_LT(took, kLimit);
  job.quit(rest);
  return took;
}

// Waits until these ranks have joined the start of the group.
void await_arrival(const std::string& port, const std::vector<int>& ranks) {
  core::TcpStoreOptions options;
  options.port = static_cast<uint16_t>(std::stoi(port));
  const core::Deadline deadline = core::Deadline::after(60'000'000'000);
  const auto store = core::make_tcp_store(options, deadline);
  for (const int rank : ranks) {
    store->get("bp/round/0/group/world/bp/join/rank/" + std::to_string(rank), deadline);
  }
}

// Kills one rank while all but one wait for the last, which joins later. Returns the seconds that the survivors took.
double kill_in_init(const std::string& backend, int world, int victim) {
  SCOPED_TRACE("during init, rank " + std::to_string(victim) + " of " + std::to_string(world));
  Job job(backend, world, Host::kLauncher, kHeartbeatLimit);
  const int late = (victim + 1) % world;
  const std::string expected = lost(job.name(victim), victim);
  job.send(job.others({late}), "init");
  await_arrival(job.port(), job.others({late}));
  const auto start = Clock::now();
  job[victim].kill();
  const double dead = seconds_since(start);
  for (const std::string& answer : job.receive(job.others({victim, late}))) EXPECT_EQ(answer, expected);
  EXPECT_EQ(job[late].call("init"), expected);  // a later rank gets the same error
  const double took = seconds_since(start) - dead;
  EXPECT_LT(took, kLimit);
  job.quit(job.others({victim}));
  return took;
}

TEST_P(LivenessTest, KilledRanksOfAFileStoreAreNamed) {
  for (const Moment& moment : kMoments) kill_at(GetParam(), moment, 3, 1, Host::kFile);
}

TEST_P(LivenessTest, LeavingAFileStoreIsNotALoss) {
  Job job(GetParam(), 3, Host::kFile);
  job.init();
  EXPECT_EQ(job[2].call("leave"), "ok");
  EXPECT_EQ(job[2].wait(), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the others poll every 200 ms
  job[0].send("exchange 1");
  EXPECT_EQ(job[1].call("exchange 0"), "ok");
  EXPECT_EQ(job[0].receive(), "ok");
  const std::string expected = lost(job.name(1), 1);
  job[1].kill();
  EXPECT_EQ(job[0].call("recv 1"), expected);
  EXPECT_EQ(job[0].call("shrink"), "shrunk 0 of 1: 0");
  job.quit({0});
}

TEST_P(LivenessTest, KilledRanksAreNamedByAll) {
  std::mt19937 random(7);
  double longest = 0;
  int named = 0;
  for (int trial = 0; trial < trials(); ++trial) {
    const size_t moment = static_cast<size_t>(trial) % (std::size(kMoments) + 1);
    const int world = 2 + static_cast<int>(random() % 7);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(world));
    const Host host = trial % 3 == 2 ? Host::kRankZero : Host::kLauncher;
    const double took = moment == std::size(kMoments) ? kill_in_init(GetParam(), world, victim)
                                                      : kill_at(GetParam(), kMoments[moment], world, victim, host);
    longest = std::max(longest, took);
    if (HasFailure()) break;
    ++named;
  }
  std::printf("%s: in %d of %d trials all survivors named the killed rank, after at most %.3f s\n", GetParam().c_str(),
              named, trials(), longest);
}

TEST_P(LivenessTest, AStoppedRankIsNamed) {
  Job job(GetParam(), 3, Host::kLauncher, {{"BACKPLANE_HEARTBEAT_LIMIT", "2s"}});
  job.init();
  const std::string expected =
      lost(job.name(1), 1, "no heartbeat from it for 2 s; it may be suspended, or its network down");
  job.send({0, 2}, "all_reduce");
  const auto start = Clock::now();
  job[1].signal(SIGSTOP);
  expect_all(job.receive({0, 2}), expected);
  const double took = seconds_since(start);
  EXPECT_LT(took, 20) << "long after the heartbeat limit";
  std::printf("named %.3f s after it was stopped\n", took);
  job[1].signal(SIGCONT);
  // The resumed rank gets the error. Over shared memory, its first all_reduce may find the data of the others.
  std::string answer = job[1].call("all_reduce");
  if (GetParam() == "shm" && answer == "sum 3") answer = job[1].call("all_reduce");
  EXPECT_EQ(answer, expected);
  job.quit({0, 1, 2});
}

TEST_P(LivenessTest, AStoppedServerIsNamed) {
  Job job(GetParam(), 3, Host::kRankZero, {{"BACKPLANE_HEARTBEAT_LIMIT", "2s"}});
  job.init();
  job.send({1, 2}, "all_reduce");
  job[0].signal(SIGSTOP);
  expect_all(job.receive({1, 2}),
             lost(job.name(0), 0, "no heartbeat from it for 2 s; it may be suspended, or its network down"));
  job[0].kill();
  job.quit({1, 2});
}

TEST_P(LivenessTest, AStopOfTwoSecondsIsNotALoss) {
  Job job(GetParam(), 3, Host::kRankZero);
  job.init();
  for (const int stopped : {0, 1}) {  // the rank with the store server, and another
    job.send(job.others({stopped}), "all_reduce");
    job[stopped].signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(2));  // the subject of the test
    job[stopped].signal(SIGCONT);
    job[stopped].send("all_reduce");
    expect_all(job.receive({0, 1, 2}), "sum 3");
  }
  job.quit({0, 1, 2});
}

TEST_P(LivenessTest, TheLossOfTheStoreIsNamed) {
  Job job(GetParam(), 3);
  job.init();
  job.send({0, 1}, "all_reduce");
  job.server().kill();
  for (const std::string& answer : job.receive({0, 1})) {
    EXPECT_TRUE(answer.starts_with("error 5 -1 the store at tcp://127.0.0.1:" + job.port() + " (")) << answer;
    EXPECT_TRUE(answer.ends_with("is lost: its process ended")) << answer;
  }
  job.quit({0, 1, 2});
}

TEST_P(LivenessTest, LeavingIsNotALoss) {
  Job job(GetParam(), 4);
  job.init();
  expect_all(job.call({0, 1, 2, 3}, "all_reduce"), "sum 4");
  EXPECT_EQ(job[3].call("leave"), "ok");  // without destroying anything
  EXPECT_EQ(job[3].wait(), 0);
  EXPECT_EQ(job[2].call("quit"), "ok");
  EXPECT_EQ(job[2].wait(), 0);
  for (int i = 0; i < 3; ++i) {
    job[0].send("exchange 1");
    EXPECT_EQ(job[1].call("exchange 0"), "ok");
    EXPECT_EQ(job[0].receive(), "ok");
  }
  job.quit({0, 1});
}

TEST_P(LivenessTest, VanishedRanksAreLost) {
  Job job(GetParam(), 3);
  job.init();
  job[2].send("vanish");  // exits with code 0, without leaving the store
  EXPECT_EQ(job[2].wait(), 0);
  const std::vector<std::string> answers = job.call({0, 1}, "barrier");
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_TRUE(answers[0].starts_with("error 5 2 rank 2 (")) << answers[0];
  job.quit({0, 1});
}

TEST_P(LivenessTest, SurvivorsContinueAfterOneDeath) {
  Job job(GetParam(), 4);
  job.init();
  job.send({0, 1, 3}, "all_reduce");
  job[2].kill();
  job.receive({0, 1, 3});
  const auto answers = job.call({0, 1, 3}, "shrink");
  EXPECT_EQ(answers,
            (std::vector<std::string>{"shrunk 0 of 3: 0 1 3", "shrunk 1 of 3: 0 1 3", "shrunk 2 of 3: 0 1 3"}));
  expect_all(job.call({0, 1, 3}, "all_reduce"), "sum 3");
  job.quit({0, 1, 3});
}

TEST_P(LivenessTest, SurvivorsContinueAfterTwoDeaths) {
  Job job(GetParam(), 5);
  job.init();
  job[0].kill();  // the launcher serves the store
  job[3].kill();
  auto answers = job.call({1, 2, 4}, "shrink");  // no rank has reported the deaths yet
  EXPECT_EQ(answers,
            (std::vector<std::string>{"shrunk 0 of 3: 1 2 4", "shrunk 1 of 3: 1 2 4", "shrunk 2 of 3: 1 2 4"}));
  expect_all(job.call({1, 2, 4}, "all_reduce"), "sum 3");
  const std::string expected = lost(job.name(2), 1);  // rank 2 of the job is rank 1 there
  job.send({1, 4}, "all_reduce");
  job[2].kill();
  expect_all(job.receive({1, 4}), expected);
  answers = job.call({1, 4}, "shrink");
  EXPECT_EQ(answers, (std::vector<std::string>{"shrunk 0 of 2: 1 4", "shrunk 1 of 2: 1 4"}));
  expect_all(job.call({1, 4}, "all_reduce"), "sum 2");
  job[1].kill();
  EXPECT_EQ(job[4].call("shrink"), "shrunk 0 of 1: 4");
  EXPECT_EQ(job[4].call("all_reduce"), "sum 1");
  job.quit({4});
}

TEST_P(LivenessTest, TheLeaderOfAShrinkMayDie) {
  Job job(GetParam(), 4);
  job.init();
  job[3].kill();
  job.send({0, 1}, "shrink");  // they wait for rank 2
  job[0].kill();
  job[2].send("shrink");
  EXPECT_EQ(job.receive({1, 2}), (std::vector<std::string>{"shrunk 0 of 2: 1 2", "shrunk 1 of 2: 1 2"}));
  expect_all(job.call({1, 2}, "all_reduce"), "sum 2");
  job.quit({1, 2});
}

}  // namespace
}  // namespace backplane::test
