// SPDX-License-Identifier: Apache-2.0
//
// How jobs end: failures, signals, deadlines. No process may be left.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

// A script that starts a child, writes the pids of both to files, and runs `more`.
std::string waiting(const ScopedDirectory& place, const std::string& more = "wait") {
  return "sleep 1000 & echo $! > " + place.file("child") + "$RANK; echo $$ > " + place.file("rank") + "$RANK; " + more;
}

void expect_all_ended(const ScopedDirectory& place, int ranks) {
  for (int i = 0; i < ranks; ++i) {
    for (const char* kind : {"rank", "child"}) {
      const pid_t pid = pid_in(place.file(kind + std::to_string(i)));
      EXPECT_TRUE(eventually([pid] { return has_ended(pid); })) << kind << i << " still runs";
    }
  }
}

void expect_started(const ScopedDirectory& place, int ranks) {
  for (int i = 0; i < ranks; ++i) ASSERT_NE(pid_in(place.file("rank" + std::to_string(i))), 0);
}

TEST(Launch, OneFailureEndsAllRanks) {
  const ScopedDirectory place;
  const std::string others = "while [ ! -s " + place.file("rank") + "0 ]; do :; done; exit 3";
  const Outcome outcome =
      run({"run", "-n", "2", "sh", "-c", waiting(place, "if [ $RANK = 1 ]; then " + others + "; fi; wait")});
  EXPECT_EQ(outcome.code, 3);
  const std::string pid = std::to_string(pid_in(place.file("rank1")));
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  EXPECT_EQ(outcome.err, std::string("backplane: rank 1 (") + host.data() + ", pid " + pid +
                             ") exited with code 3; ending the other ranks\n");
  expect_all_ended(place, 2);
}

TEST(Launch, KeepGoingIgnoresAFailure) {
  const ScopedDirectory place;
  const Outcome outcome = run({"run", "-n", "3", "--keep-going", "sh", "-c",
                               "if [ $RANK = 1 ]; then echo 1 > " + place.file("gone") + "; kill -9 $$; fi; " +
                                   "while [ ! -s " + place.file("gone") + " ]; do :; done; echo done; exit $RANK"});
  EXPECT_EQ(count_lines(outcome.out, "[0] done"), 1U) << outcome.out;
  EXPECT_EQ(count_lines(outcome.out, "[2] done"), 1U) << outcome.out;
  EXPECT_TRUE(contains(outcome.err, "was killed by signal 9 (Killed)\n")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "exited with code 2\n")) << outcome.err;
  EXPECT_FALSE(contains(outcome.err, "ending")) << outcome.err;
  EXPECT_TRUE(outcome.code == 2 || outcome.code == 128 + SIGKILL) << outcome.code;  // of the first to fail
}

TEST(Launch, NamesTheSignalThatKilledARank) {
  const Outcome outcome = run({"run", "-n", "1", "sh", "-c", "kill -9 $$"});
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(outcome.err, "was killed by signal 9 (Killed)\n")) << outcome.err;
}

TEST(Launch, KillsRanksThatIgnoreSigterm) {
  const ScopedDirectory place;
  const std::string script = "trap '' TERM; " + waiting(place, "while :; do wait; done");
  Command command({"run", "-n", "2", "--grace", "0.2", "sh", "-c", script});
  expect_started(place, 2);
  ::kill(pid_in(place.file("rank1")), SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  expect_all_ended(place, 2);
}

TEST(Launch, LeavesNoGrandchildrenOfSuccessfulRanks) {
  const ScopedDirectory place;
  EXPECT_EQ(run({"run", "-n", "2", "sh", "-c", waiting(place, "exit 0")}).code, 0);
  expect_all_ended(place, 2);
}

TEST(Launch, ForwardsSignals) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    const ScopedDirectory place;
    const std::string trap = "trap 'echo got it; exit 0' " + std::to_string(number) + "; ";
    Command command({"run", "-n", "2", "sh", "-c", trap + waiting(place)});
    expect_started(place, 2);
    command.signal(number);
    const Outcome outcome = command.wait();
    EXPECT_EQ(outcome.code, 0) << number << outcome.err;
    EXPECT_EQ(count_lines(outcome.out, "[0] got it") + count_lines(outcome.out, "[1] got it"), 2U) << number;
    expect_all_ended(place, 2);
  }
}

TEST(Launch, SecondInterruptKills) {
  const ScopedDirectory place;
  const std::string script = "trap 'echo no' INT; " + waiting(place, "while :; do wait; done");
  Command command({"run", "-n", "2", "sh", "-c", script});
  expect_started(place, 2);
  command.signal(SIGINT);
  ASSERT_TRUE(eventually([&command] { return count_lines(command.out(), "[1] no") > 0; }));
  // Until enough time has passed for it to count as another request.
  EXPECT_TRUE(eventually([&command] {
    command.signal(SIGINT);
    return contains(command.err(), "asked twice to end");
  }));
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(outcome.err, "asked twice to end: killing all ranks")) << outcome.err;
  expect_all_ended(place, 2);
}

TEST(Launch, KillsRanksThatIgnoreAForwardedSignal) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const ScopedDirectory place;
    const std::string script = "trap '' INT TERM HUP; " + waiting(place, "while :; do wait; done");
    Command command({"run", "-n", "2", "--grace", "0.2", "sh", "-c", script});
    expect_started(place, 2);
    command.signal(number);
    const Outcome outcome = command.wait();
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << number;
    EXPECT_TRUE(contains(outcome.err, "did not end within 0.2 s: killing")) << outcome.err;
    expect_all_ended(place, 2);
  }
}

TEST(Launch, RanksEndWithAKilledLauncher) {
  const ScopedDirectory place;
  Command command({"run", "-n", "2", "sh", "-c", waiting(place)});
  expect_started(place, 2);
  command.signal(SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  expect_all_ended(place, 2);
}

// The launcher may not have registered a rank that has just started, so the test is repeated.
TEST(Launch, RanksEndWithALauncherKilledAtTheStart) {
  for (int round = 0; round < 20; ++round) {
    const ScopedDirectory place;
    Command command({"run", "-n", "1", "sh", "-c", waiting(place, "kill -9 $PPID; wait")});
    EXPECT_EQ(command.wait().code, 128 + SIGKILL);
    expect_all_ended(place, 1);
    if (HasFailure()) break;
  }
}

TEST(Launch, TimesOut) {
  const ScopedDirectory place;
  const Outcome outcome = run({"run", "-n", "2", "--timeout", "3", "sh", "-c", waiting(place)});
  EXPECT_EQ(outcome.code, 124);
  EXPECT_TRUE(contains(outcome.err, "backplane: the job did not end within 3 s; ending the other ranks\n"))
      << outcome.err;
  expect_all_ended(place, 2);
}

TEST(Launch, ClosedOutputEndsTheRanks) {
  const std::string command = BACKPLANE_TEST_COMMAND;
  const ScopedDirectory place;
  const std::string script = command + " run -n 1 --tag-output yes 2> " + place.file("err") + " | head -n 1; cat " +
                             place.file("err") + " >&2";
  const Outcome outcome = run({"run", "-n", "1", "sh", "-c", script});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "[0] y\n");
  EXPECT_TRUE(eventually([&place] { return contains(read_file(place.file("err")), "signal 13 (Broken pipe)"); }))
      << read_file(place.file("err"));
}

}  // namespace
}  // namespace backplane::test
