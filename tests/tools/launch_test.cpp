// SPDX-License-Identifier: Apache-2.0
//
// How jobs end: failures, signals, deadlines, and that nothing is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

// Each rank writes its pid and that of a child of its own, then waits for ever. A rank that is to do more comes after.
std::string waiting(const Workplace& place, const std::string& more = "wait") {
  return "sleep 1000 & echo $! > " + place.file("child") + "$RANK; echo $$ > " + place.file("rank") + "$RANK; " + more;
}

void expect_all_gone(const Workplace& place, int ranks) {
  for (int i = 0; i < ranks; ++i) {
    for (const char* kind : {"rank", "child"}) {
      const pid_t pid = place.pid_in(kind + std::to_string(i));
      EXPECT_TRUE(eventually([pid] { return gone(pid); })) << kind << i << " lives on";
    }
  }
}

void expect_started(const Workplace& place, int ranks) {
  for (int i = 0; i < ranks; ++i) ASSERT_NE(place.pid_in("rank" + std::to_string(i)), 0);
}

TEST(Launch, OneFailureEndsAll) {
  const Workplace place;
  const std::string others = "while [ ! -s " + place.file("rank") + "0 ]; do :; done; exit 3";
  const Outcome outcome =
      run({"run", "-n", "2", "sh", "-c", waiting(place, "if [ $RANK = 1 ]; then " + others + "; fi; wait")});
  EXPECT_EQ(outcome.code, 3);
  const std::string pid = std::to_string(place.pid_in("rank1"));
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  EXPECT_EQ(outcome.err, std::string("backplane: rank 1 (") + host.data() + ", pid " + pid +
                             ") exited with code 3; ending the other ranks\n");
  expect_all_gone(place, 2);
}

TEST(Launch, OneFailureNeedNotEndAll) {
  const Workplace place;
  const Outcome outcome = run({"run", "-n", "3", "--keep-going", "sh", "-c",
                               "if [ $RANK = 1 ]; then echo 1 > " + place.file("gone") + "; kill -9 $$; fi; " +
                                   "while [ ! -s " + place.file("gone") + " ]; do :; done; echo done; exit $RANK"});
  EXPECT_EQ(count_lines(outcome.out, "[0] done"), 1U) << outcome.out;
  EXPECT_EQ(count_lines(outcome.out, "[2] done"), 1U) << outcome.out;
  EXPECT_TRUE(contains(outcome.err, "was killed by signal 9 (Killed)\n")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "exited with code 2\n")) << outcome.err;
  EXPECT_FALSE(contains(outcome.err, "ending")) << outcome.err;
  EXPECT_TRUE(outcome.code == 2 || outcome.code == 128 + SIGKILL) << outcome.code;  // whichever was first
}

TEST(Launch, NamesTheSignalThatKilledARank) {
  const Outcome outcome = run({"run", "-n", "1", "sh", "-c", "kill -9 $$"});
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(outcome.err, "was killed by signal 9 (Killed)\n")) << outcome.err;
}

TEST(Launch, KillsWhatIgnoresSigterm) {
  const Workplace place;
  const std::string script = "trap '' TERM; " + waiting(place, "while :; do wait; done");
  Command command({"run", "-n", "2", "--grace", "0.2", "sh", "-c", script});
  expect_started(place, 2);
  ::kill(place.pid_in("rank1"), SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  expect_all_gone(place, 2);
}

TEST(Launch, LeavesNoGrandchildrenOfSuccessfulRanks) {
  const Workplace place;
  EXPECT_EQ(run({"run", "-n", "2", "sh", "-c", waiting(place, "exit 0")}).code, 0);
  expect_all_gone(place, 2);
}

TEST(Launch, PassesSignalsOn) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    const Workplace place;
    const std::string trap = "trap 'echo got it; exit 0' " + std::to_string(number) + "; ";
    Command command({"run", "-n", "2", "sh", "-c", trap + waiting(place)});
    expect_started(place, 2);
    command.signal(number);
    const Outcome outcome = command.wait();
    EXPECT_EQ(outcome.code, 0) << number << outcome.err;
    EXPECT_EQ(count_lines(outcome.out, "[0] got it") + count_lines(outcome.out, "[1] got it"), 2U) << number;
    expect_all_gone(place, 2);
  }
}

TEST(Launch, ASecondInterruptKills) {
  const Workplace place;
  const std::string script = "trap 'echo no' INT; " + waiting(place, "while :; do wait; done");
  Command command({"run", "-n", "2", "sh", "-c", script});
  expect_started(place, 2);
  command.signal(SIGINT);
  ASSERT_TRUE(eventually([&command] { return count_lines(command.out(), "[1] no") > 0; }));
  command.signal(SIGINT);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(outcome.err, "interrupted twice")) << outcome.err;
  expect_all_gone(place, 2);
}

TEST(Launch, EndsWithTheLauncherEvenIfThatIsKilled) {
  const Workplace place;
  Command command({"run", "-n", "2", "sh", "-c", waiting(place)});
  expect_started(place, 2);
  command.signal(SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  expect_all_gone(place, 2);
}

// The moment after a rank's first step is the one in which a launcher may not know of it yet, so this asks often.
TEST(Launch, EndsWithTheLauncherEvenIfARankKillsThatAtOnce) {
  for (int round = 0; round < 20; ++round) {
    const Workplace place;
    Command command({"run", "-n", "1", "sh", "-c", waiting(place, "kill -9 $PPID; wait")});
    EXPECT_EQ(command.wait().code, 128 + SIGKILL);
    expect_all_gone(place, 1);
    if (HasFailure()) break;
  }
}

TEST(Launch, TimesOut) {
  const Workplace place;
  const Outcome outcome = run({"run", "-n", "2", "--timeout", "0.5", "sh", "-c", waiting(place)});
  EXPECT_EQ(outcome.code, 124);
  EXPECT_TRUE(contains(outcome.err, "backplane: the job did not end within 0.5 s; ending the other ranks\n"))
      << outcome.err;
  expect_all_gone(place, 2);
}

TEST(Launch, ARankLearnsThatNobodyReads) {
  const std::string command = BACKPLANE_TEST_COMMAND;
  const Workplace place;
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
