// SPDX-License-Identifier: Apache-2.0
//
// Ranks are killed, and other processes take their place. BACKPLANE_GROW_TRIALS (2) is the number of times that one job
// loses a rank and takes one in.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "liveness/job.hpp"
#include "store/store.hpp"
#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using Answers = std::vector<std::string>;

int grow_trials() {
  const char* text = std::getenv("BACKPLANE_GROW_TRIALS");
  return text == nullptr ? 2 : std::max(std::atoi(text), 1);
}

class GrowthTest : public testing::TestWithParam<std::string> {
 protected:
  static void expect_each(const Answers& answers, const std::string& beginning, const std::string& part = "") {
    for (const std::string& answer : answers) {
      EXPECT_TRUE(answer.starts_with(beginning)) << answer;
      EXPECT_NE(answer.find(part), std::string::npos) << answer;
    }
  }
  static std::shared_ptr<core::Store> connect(const Job& job) {
    core::TcpStoreOptions options;
    options.port = static_cast<uint16_t>(std::stoi(job.port()));
    return core::make_tcp_store(options, core::Deadline::after(60'000'000'000));
  }
  // Waits until exactly these newcomers, by number, wait.
  static void await_list(core::Store& store, const std::string& list) {
    EXPECT_TRUE(eventually([&store, &list] {
      return store.compare_set("grow/waiting", list, list, core::Deadline::after(60'000'000'000)) == list;
    }));
  }
  // A process that a test stops is not lost meanwhile.
  static Variables patient() { return {{"BACKPLANE_HEARTBEAT_LIMIT", "120"}}; }
  static void await_key(core::Store& store, const std::string& key) {
    store.wait({key}, core::Deadline::after(60'000'000'000));
  }
  // Kills rank 2 of four. Returns the others, in a group of three.
  static std::vector<int> shrink_to_three(Job& job) {
    job.init();
    job.send({0, 1, 3}, "all_reduce");
    job[2].kill();
    job.receive({0, 1, 3});
    expect_each(job.call({0, 1, 3}, "shrink"), "shrunk ");
    return {0, 1, 3};
  }
  // Takes in the newcomer.
  static void expect_growth(Job& job, const std::vector<int>& members, Process& newcomer) {
    EXPECT_EQ(job[members.front()].call("newcomers"), "ok");
    job.send(members, "grow");
    const std::string size = std::to_string(members.size() + 1);
    for (size_t i = 0; i < members.size(); ++i) {
      EXPECT_EQ(job[members[i]].receive(), "grown " + std::to_string(i) + " of " + size);
    }
    EXPECT_EQ(newcomer.receive(), "joined " + std::to_string(members.size()) + " of " + size);
    job.send(members, "all_reduce");
    EXPECT_EQ(newcomer.call("all_reduce"), "sum " + size);
    expect_each(job.receive(members), "sum " + size);
  }
  static void quit(Job& job, const std::vector<int>& members, const std::vector<Process*>& newcomers) {
    for (Process* each : newcomers) each->send("quit");
    job.quit(members);
    for (Process* each : newcomers) EXPECT_EQ(each->wait(), 0);
  }

  // Ranks of one job die one after the other, and others come.
  static void replace_ranks(Host host) {
    Job job(GetParam(), 4, host, {{"BACKPLANE_LAYERS", "validate"}});
    std::vector<int> members = shrink_to_three(job);
    for (int trial = 0; trial < grow_trials() && !HasFailure(); ++trial) {
      SCOPED_TRACE("trial " + std::to_string(trial));
      const int newcomer = job.add_process();
      EXPECT_EQ(job[newcomer].call("ask"), "ok");
      expect_growth(job, members, job[newcomer]);
      // One of the four dies. All others name it by its rank in the grown group, and shrink.
      members.push_back(newcomer);
      const int victim = trial % 4;
      job[members[static_cast<size_t>(victim)]].kill();
      members.erase(members.begin() + victim);
      const std::string expected = "error 5 " + std::to_string(victim) + " rank " + std::to_string(victim) + " (";
      expect_each(job.call(members, "barrier"), expected, "is lost: its process ended");
      expect_each(job.call(members, "shrink"), "shrunk ", " of 3:");
    }
    job.quit(members);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, GrowthTest, testing::ValuesIn(process_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(GrowthTest, KilledRanksAreReplaced) { replace_ranks(Host::kLauncher); }

TEST_P(GrowthTest, KilledRanksOfAFileStoreAreReplaced) { replace_ranks(Host::kFile); }

TEST_P(GrowthTest, ANewcomerThatDiedBeforeIsLeftOut) {
  Job job(GetParam(), 3);
  job.init();
  const int dead = job.add_process();
  EXPECT_EQ(job[dead].call("ask"), "ok");
  const auto store = connect(job);
  await_list(*store, "1:-");
  job[dead].kill();
  const int other = job.add_process();
  EXPECT_EQ(job[other].call("ask"), "ok");
  await_list(*store, "1:- 2:-");
  expect_growth(job, {0, 1, 2}, job[other]);
  expect_each(job.call({0, 1, 2}, "grow"), "again ", "no process has asked");
  quit(job, {0, 1, 2}, {&job[other]});
}

TEST_P(GrowthTest, ANewcomerThatDiesWhileItIsTakenIsNamed) {
  Job job(GetParam(), 4, Host::kLauncher, patient());
  const std::vector<int> members = shrink_to_three(job);
  const auto store = connect(job);
  const int doomed = job.add_process();
  EXPECT_EQ(job[doomed].call("ask"), "ok");
  await_list(*store, "1:-");
  const int other = job.add_process();
  EXPECT_EQ(job[other].call("ask"), "ok");
  await_list(*store, "1:- 2:-");
  job[doomed].signal(SIGSTOP);
  job.send(members, "grow");
  await_key(*store, "grow/group/0/bp/join/rank/4");  // the other newcomer waits for it too
  job[doomed].kill();
  const std::string name = job.name(doomed).substr(job.name(doomed).find('('));
  expect_each(job.receive(members), "again ", "the newcomer " + name + " is lost");
  expect_each(job.call(members, "all_reduce"), "sum 3");
  await_list(*store, "1:0 3:-");  // the other one asks again by itself
  expect_growth(job, members, job[other]);
  await_list(*store, "");
  quit(job, members, {&job[other]});
}

TEST_P(GrowthTest, AMemberThatDiesMeanwhileIsNamed) {
  for (const int victim : {0, 1}) {  // rank 0 decides
    SCOPED_TRACE("rank " + std::to_string(victim));
    Job job(GetParam(), 3, Host::kLauncher, patient());
    job.init();
    const auto store = connect(job);
    const int newcomer = job.add_process();
    EXPECT_EQ(job[newcomer].call("ask"), "ok");
    await_list(*store, "1:-");
    job[newcomer].signal(SIGSTOP);  // so that the members wait
    job.send({0, 1, 2}, "grow");
    for (const int rank : {0, 1, 2}) await_key(*store, "grow/group/0/bp/join/rank/" + std::to_string(rank));
    const std::string expected = "error 5 " + std::to_string(victim) + " " + job.name(victim) + " is lost";
    job[victim].kill();
    const std::vector<int> rest = job.others({victim, newcomer});
    expect_each(job.receive(rest), expected);
    job[newcomer].signal(SIGCONT);
    await_list(*store, "2:-");
    expect_each(job.call(rest, "shrink"), "shrunk ");
    expect_growth(job, rest, job[newcomer]);
    quit(job, rest, {&job[newcomer]});
  }
}

}  // namespace
}  // namespace backplane::test
