// SPDX-License-Identifier: Apache-2.0
//
// What ranks get and what becomes of their output.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

TEST(Run, SetsTheEnvironmentOfEachRank) {
  const Outcome outcome =
      run({"run", "-n", "3", "--backend", "zmq", "--job-id", "j7", "sh", "-c",
           "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $BACKPLANE_STORE_HOSTED "
           "$BACKPLANE_JOB_ID $BACKPLANE_BACKEND; test \"$MASTER_PORT\" -gt 0"},
          {{{"RANK", "17"}, {"WORLD_SIZE", "99"}, {"MASTER_ADDR", "nowhere"}, {"BACKPLANE_BACKEND", "none"}}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line :
       {"[0] 0 0 3 3 0 127.0.0.1 1 j7 zmq", "[1] 1 1 3 3 0 127.0.0.1 1 j7 zmq", "[2] 2 2 3 3 0 127.0.0.1 1 j7 zmq"}) {
    EXPECT_EQ(count_lines(outcome.out, line), 1U) << outcome.out;
  }
}

TEST(Run, RunsUnderItself) {
  const Outcome outcome = run({"run", "-n", "2", BACKPLANE_TEST_COMMAND, "run", "-n", "2", BACKPLANE_TEST_RANK});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[0] [0] word of 1"), 1U) << outcome.out;
  EXPECT_EQ(count_lines(outcome.out, "[1] [1] word of 0"), 1U) << outcome.out;
}

TEST(Run, ServesTheStore) {
  const Outcome outcome = run({"run", "-n", "3", BACKPLANE_TEST_RANK});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[2] word of 0"), 1U) << outcome.out;
}

TEST(Run, PassesTheProgramsOptionsOn) {
  EXPECT_EQ(run({"run", "-n1", "echo", "-n", "--timeout", "list"}).out, "--timeout list");
  EXPECT_EQ(run({"run", "--nproc=1", "--no-prefix", "--", "printf", "%s|", "--", "-x"}).out, "--|-x|");
}

TEST(Run, TagsOnRequest) {
  EXPECT_EQ(run({"run", "-n", "1", "echo", "a"}).out, "a\n");
  EXPECT_EQ(run({"run", "-n", "1", "--tag-output", "echo", "a"}).out, "[0] a\n");
  EXPECT_EQ(run({"run", "-n", "2", "--no-prefix", "echo", "a"}).out, "a\na\n");
}

TEST(Run, PrefixesWholeLinesOfBothStreams) {
  const Outcome outcome = run({"run", "-n", "2", "sh", "-c", "echo a; printf b; echo e >&2; printf '\\nlast'"});
  for (const char* line : {"[0] a", "[0] b", "[0] last", "[1] a", "[1] b", "[1] last"}) {
    EXPECT_EQ(count_lines(outcome.out, line), 1U) << outcome.out;
  }
  EXPECT_EQ(count_lines(outcome.err, "[0] e") + count_lines(outcome.err, "[1] e"), 2U) << outcome.err;
  EXPECT_FALSE(contains(outcome.out, "\x1b"));
}

TEST(Run, PassesBytesAndEndlessLines) {
  const Outcome bytes = run({"run", "-n", "1", "--tag-output", "printf", "a\\0b\\377\\n"});
  EXPECT_EQ(bytes.out, std::string("[0] a\0b\xff\n", 9));
  const Outcome endless = run({"run", "-n", "1", "--tag-output", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"});
  EXPECT_TRUE(endless.out == "[0] " + std::string(3000000, 'x') + "\n") << endless.out.size() << endless.err;
}

TEST(Run, EndsALineThatWasPassedOnInPieces) {
  // As long as the longest line that is kept, so nothing of it is left when the stream ends.
  const Outcome outcome = run({"run", "-n", "1", "--tag-output", "sh", "-c", "head -c 65536 /dev/zero | tr '\\0' x"});
  EXPECT_TRUE(outcome.out == "[0] " + std::string(65536, 'x') + "\n") << outcome.out.size() << outcome.err;
}

TEST(Run, GivesStandardInputToRankZero) {
  const Outcome outcome = run({"run", "-n", "2", "cat"}, {{}, "question\n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[0] question\n");
}

TEST(Run, SaysThatAProgramIsMissingOrNotExecutable) {
  const Workplace place;
  std::ofstream(place.file("data")) << "x";
  std::ofstream(place.file("script")) << "echo no interpreter\n";
  fs::permissions(place.file("script"), fs::perms(0755));
  const Outcome missing = run({"run", "-n", "2", "no-such-program"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_TRUE(contains(missing.err, "backplane: program 'no-such-program' not found in PATH")) << missing.err;
  EXPECT_EQ(run({"run", "-n", "2", place.file("none")}).code, 127);
  const Outcome data = run({"run", "-n", "2", place.file("data")});
  EXPECT_EQ(data.code, 126);
  EXPECT_TRUE(contains(data.err, "data cannot be executed: Permission denied; chmod +x")) << data.err;
  EXPECT_EQ(run({"run", "-n", "2", place.file("")}).code, 126);
  const Outcome script = run({"run", "-n", "2", place.file("script")});
  EXPECT_EQ(script.code, 126);
  EXPECT_TRUE(contains(script.err, "script cannot be executed: Exec format error")) << script.err;
}

TEST(Run, LeavesNoDescriptorsToRanks) {
  // Some sandboxes show descriptors of their own in every process, so a process without a launcher is the measure.
  const Outcome alone = run({"/proc/self/fd"}, {{}, {}, "/bin/ls"});
  EXPECT_EQ(run({"run", "-n", "1", "ls", "/proc/self/fd"}).out, alone.out);
  const Outcome two = run({"run", "-n", "2", "ls", "/proc/self/fd"});
  EXPECT_EQ(std::count(two.out.begin(), two.out.end(), '\n'), 2 * std::count(alone.out.begin(), alone.out.end(), '\n'))
      << two.out;
}

}  // namespace
}  // namespace backplane::test
