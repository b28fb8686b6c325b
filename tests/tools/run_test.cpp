// SPDX-License-Identifier: Apache-2.0
//
// Environment, input and output of ranks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

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

TEST(Run, LeavesTheMasterPortToTorch) {
  const Outcome outcome = run({"run", "-n", "2", "--torch", "sh", "-c",
                               "test \"$BACKPLANE_STORE\" != $MASTER_ADDR:$MASTER_PORT && "
                               "MASTER_PORT=${BACKPLANE_STORE#127.0.0.1:} exec " BACKPLANE_TEST_RANK});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[1] word of 0"), 1U) << outcome.out;
  const Outcome nested = run({"run", "-n", "1", "--torch", BACKPLANE_TEST_COMMAND, "run", "-n", "2", "sh", "-c",
                              "test -z \"$BACKPLANE_STORE\" && exec " BACKPLANE_TEST_RANK});
  EXPECT_EQ(nested.code, 0) << nested.err;
  const Outcome last = run(
      {"run", "-n", "1", "--torch", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "65535", "true"});
  EXPECT_EQ(last.code, 2);
  EXPECT_TRUE(contains(last.err, "the port after --master-port")) << last.err;
}

TEST(Run, RunsNested) {
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

TEST(Run, MpichStartsInItsRanks) {
  if (std::string(BACKPLANE_TEST_HYDRA).empty()) GTEST_SKIP() << "MPICH is not installed";
  const Outcome outcome = run({"run", "-n", "3", BACKPLANE_TEST_MPICH_RANK});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line : {"[0] rank 0 of 3: the ranks add up to 3", "[2] rank 2 of 3: the ranks add up to 3"}) {
    EXPECT_EQ(count_lines(outcome.out, line), 1U) << outcome.out;
  }
  const Outcome alone = run({"run", "-n", "2", "--no-pmi", BACKPLANE_TEST_MPICH_RANK});
  EXPECT_EQ(count_lines(alone.out, "[1] rank 0 of 1: the ranks add up to 0"), 1U) << alone.out << alone.err;
}

// MPI_Abort waits for the launcher to end the rank.
TEST(Run, MpichAborts) {
  if (std::string(BACKPLANE_TEST_HYDRA).empty()) GTEST_SKIP() << "MPICH is not installed";
  const Outcome outcome = run({"run", "-n", "2", BACKPLANE_TEST_MPICH_RANK, "abort"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.err, "application called MPI_Abort")) << outcome.err;
}

TEST(Run, PassesOptionsToTheProgram) {
  EXPECT_EQ(run({"run", "-n1", "echo", "-n", "--timeout", "list"}).out, "--timeout list");
  EXPECT_EQ(run({"run", "--nproc=1", "--no-prefix", "--", "printf", "%s|", "--", "-x"}).out, "--|-x|");
}

TEST(Run, PrefixesOnRequest) {
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

TEST(Run, EndsALineForwardedInPieces) {
  // The maximum size of a buffered line, so the buffer is empty at the end of the stream.
  const Outcome outcome = run({"run", "-n", "1", "--tag-output", "sh", "-c", "head -c 65536 /dev/zero | tr '\\0' x"});
  EXPECT_TRUE(outcome.out == "[0] " + std::string(65536, 'x') + "\n") << outcome.out.size() << outcome.err;
}

TEST(Run, ForwardsStandardInputToRankZero) {
  const Outcome outcome = run({"run", "-n", "2", "cat"}, {{}, "question\n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[0] question\n");
}

TEST(Run, ReportsAMissingOrUnexecutableProgram) {
  const ScopedDirectory place;
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

TEST(Run, NamesAPluginThatWasOverwrittenInPlace) {
  const ScopedDirectory place;
  const std::string plugin = place.file("backplane_trace.so");
  fs::copy_file(plugin_directory("trace") + "/backplane_trace.so", plugin);
  struct statx status {};
  ASSERT_EQ(::statx(AT_FDCWD, plugin.c_str(), 0, STATX_BTIME, &status), 0);
  if ((status.stx_mask & STATX_BTIME) == 0) GTEST_SKIP() << "the file system does not keep when a file was made";
  const Setting setting = {{{"BACKPLANE_PLUGIN_PATH", place.path().string()}, {"PLUGIN", plugin}}};
  const std::string named = plugin + " was overwritten while the job ran";
  const auto end_of = [&setting](const std::string& change) {
    return run({"run", "-n", "1", "sh", "-c", change + "; kill -BUS $$"}, setting).err;
  };
  const std::string moved = end_of("cp -p $PLUGIN $PLUGIN.new; mv $PLUGIN.new $PLUGIN");
  EXPECT_TRUE(contains(moved, "was killed by signal 7")) << moved;
  EXPECT_FALSE(contains(moved, named)) << moved;
  const std::string written = end_of("cp $PLUGIN $PLUGIN.new; cat $PLUGIN.new > $PLUGIN");
  EXPECT_TRUE(contains(written, named)) << written;
}

// The connection of an outer rank belongs to that rank. One of mpiexec is left to the program.
TEST(Run, WithoutPmiRanksHaveNoConnectionOfAnOuterJob) {
  const std::string print = "echo ${PMI_FD-none} ${PMI_RANK-none} ${PMI_SIZE-none}";
  const Outcome inner = run({"run", "-n", "1", BACKPLANE_TEST_COMMAND, "run", "--no-pmi", "-n", "1", "sh", "-c",
                             print + "; exec ls /proc/self/fd"});
  EXPECT_TRUE(contains(inner.out, "none none none\n")) << inner.out << inner.err;
  const auto lines = [](const Outcome& outcome) { return std::count(outcome.out.begin(), outcome.out.end(), '\n'); };
  const Outcome alone = run({"/proc/self/fd"}, {{}, {}, "/bin/ls"});
  EXPECT_EQ(lines(inner), lines(alone) + 1) << inner.out;
  const Setting mpiexec = {{{"PMI_FD", "0"}, {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}};
  EXPECT_EQ(run({"run", "--no-pmi", "-n", "1", "sh", "-c", print}, mpiexec).out, "0 3 4\n");
}

// MPICH 5 refuses to choose between PMI-1 and PMIx.
TEST(Run, WithPmixMpichIsToldToUsePmi1) {
  if (std::string(BACKPLANE_TEST_PMIX_SERVER).empty()) GTEST_SKIP() << "the PMIx server is not built";
  const std::string print = "echo ${MPIR_CVAR_PMI_VERSION-none}";
  EXPECT_EQ(run({"run", "--pmix", "-n", "1", "sh", "-c", print}).out, "1\n");
  EXPECT_EQ(run({"run", "-n", "1", "sh", "-c", print}).out, "none\n");
  EXPECT_EQ(run({"run", "--pmix", "-n", "1", "sh", "-c", print}, {{{"MPIR_CVAR_PMI_VERSION", "2"}}}).out, "2\n");
}

// Besides PMI_FD.
TEST(Run, LeaksNoDescriptorsToRanks) {
  // Some sandboxes show descriptors of their own in every process, so a process without a launcher is the reference.
  const auto lines = [](const Outcome& outcome) { return std::count(outcome.out.begin(), outcome.out.end(), '\n'); };
  const Outcome alone = run({"/proc/self/fd"}, {{}, {}, "/bin/ls"});
  const Outcome one = run({"run", "-n", "1", "sh", "-c", "echo its PMI_FD is $PMI_FD; exec ls /proc/self/fd"});
  EXPECT_EQ(lines(one), lines(alone) + 2) << one.out;
  const std::string pmi = one.out.substr(0, one.out.find('\n')).substr(std::string("its PMI_FD is ").size());
  EXPECT_EQ(count_lines(one.out, pmi), 1U) << one.out;
  const Outcome two = run({"run", "-n", "2", "ls", "/proc/self/fd"});
  EXPECT_EQ(lines(two), 2 * (lines(alone) + 1)) << two.out;
}

}  // namespace
}  // namespace backplane::test
