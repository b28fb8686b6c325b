// SPDX-License-Identifier: Apache-2.0
//
// Failures of MPI, which the stub produces: each ends with one sentence, and the process ends.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "stub_job.hpp"

namespace backplane::test {
namespace {

class MpiFailuresTest : public testing::Test {
 protected:
  // Runs one rank alone. What it prints is `expected`, and perhaps more.
  void expect_output(const std::string& scenario, const StubJob::Variables& variables, const std::string& expected) {
    job_.start(0, 1, scenario, variables);
    const Outcome outcome = job_.wait().front();
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_TRUE(contains(outcome.out, expected)) << outcome.out << outcome.err;
  }
  void expect_start(const StubJob::Variables& variables, const std::string& expected) {
    expect_output("start", variables, expected);
  }

  StubJob job_{BACKPLANE_TEST_STUB_RANKS};
  const ScopedDirectory place_;
};

TEST_F(MpiFailuresTest, ThreadsThatMpiDoesNotServe) {
  expect_start({{"BACKPLANE_STUB", "level=2048;version=Stub 2.0"}},
               "Stub 2.0 does not serve several threads at once; use an MPI that provides");
}

TEST_F(MpiFailuresTest, TooFewTags) {
  expect_start({{"BACKPLANE_STUB", "tag_ub=32767"}}, "tags of Stub 1.0 end at 32767; 524287 is needed");
}

TEST_F(MpiFailuresTest, AMissingFunction) {
  expect_start({{"BACKPLANE_MPI_LIBRARY", BACKPLANE_TEST_STUB_OLD}},
               BACKPLANE_TEST_STUB_OLD " has no MPI_Improbe; a library of MPI 3.1 or newer is needed");
}

TEST_F(MpiFailuresTest, AFileThatIsNoLibrary) {
  const std::string file = place_.file("libmpi.so");
  std::ofstream(file) << std::string(4096, 'x');
  expect_start({{"BACKPLANE_MPI_LIBRARY", file}}, file + ": invalid ELF header; correct BACKPLANE_MPI_LIBRARY");
}

TEST_F(MpiFailuresTest, ALibraryThatIsNotMpi) {
  expect_start({{"BACKPLANE_MPI_LIBRARY", "libm.so.6"}}, "has neither the ABI of MPI 5, nor Open MPI's, nor MPICH's");
}

TEST_F(MpiFailuresTest, AnErrorOfInitKeepsMpisText) {
  expect_start({{"BACKPLANE_STUB", "fail=MPI_Init_thread"}},
               "mpi: MPI_Init_thread failed: a fault of MPI_Init_thread, as the test wants it");
}

TEST_F(MpiFailuresTest, AnotherLibraryThanThatOfTheProcess) {
  expect_output("libraries", {{"BACKPLANE_TEST_OLD", BACKPLANE_TEST_STUB_OLD}}, "passed");
}

TEST_F(MpiFailuresTest, AForkedChildIsRefused) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not let a forked child start threads";
#endif
  expect_output("forked", {}, "passed");
}

TEST_F(MpiFailuresTest, AProgramThatUsesMpiFinalisesIt) {
  expect_output("own", {}, "passed\nMPI_Finalize was called 1 times");
}

TEST_F(MpiFailuresTest, AProgramThatUsesMpiWithALowerThreadLevelIsRefused) {
  expect_output("own", {{"BACKPLANE_STUB", "level=0"}}, "passed");
}

TEST_F(MpiFailuresTest, ErrorsOfFunctionsKeepMpisText) { expect_output("errors", {}, "passed"); }

// A set-uid program of another user, which only root can make.
TEST_F(MpiFailuresTest, AProgramWithMoreRightsDoesNotLoadMpi) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers do not work in a set-uid program";
#endif
  constexpr uid_t kNobody = 65534;
  const std::string program = place_.file("secure");
  fs::copy_file(BACKPLANE_TEST_STUB_RANKS, program);
  if (::chown(program.c_str(), kNobody, kNobody) != 0) GTEST_SKIP() << "only root can make a program of another user";
  ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
  ASSERT_EQ(::chmod(place_.path().c_str(), 0755), 0);
  const Outcome outcome =
      run({"secure", BACKPLANE_TEST_STUB}, {{{"BACKPLANE_MPI_LIBRARY", BACKPLANE_TEST_STUB}}, {}, program});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

// The worlds of MPI of two ranks have one process each, or belong to two jobs.
TEST_F(MpiFailuresTest, RanksOfDifferentWorldsAreRefused) {
  for (int rank = 0; rank < 2; ++rank) {
    job_.start(0, 1, "start", {{"BACKPLANE_TEST_RANK", std::to_string(rank)}, {"BACKPLANE_TEST_SIZE", "2"}});
  }
  for (const Outcome& outcome : job_.wait()) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "are not in one world of MPI: both are rank 0 there")) << outcome.out;
  }
}

TEST_F(MpiFailuresTest, RanksOfDifferentJobsAreRefused) {
  for (int rank = 0; rank < 2; ++rank) {
    job_.start(rank, 2, "start", {{"PMIX_NAMESPACE", "job" + std::to_string(rank)}});
  }
  for (const Outcome& outcome : job_.wait()) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "it belongs to another job of the launcher")) << outcome.out;
  }
}

TEST_F(MpiFailuresTest, RanksOfWorldsOfDifferentSizesAreRefused) {
  StubJob other(BACKPLANE_TEST_STUB_RANKS);
  const auto of_three = [](int rank) {
    return StubJob::Variables{{"BACKPLANE_TEST_RANK", std::to_string(rank)}, {"BACKPLANE_TEST_SIZE", "3"}};
  };
  job_.start(0, 2, "start", of_three(0));
  job_.start(1, 2, "start", of_three(1));
  StubJob::Variables alone = of_three(2);
  alone.insert({"BACKPLANE_STUB_DIRECTORY", other.world()});
  job_.start(0, 1, "start", alone);
  for (const Outcome& outcome : job_.wait()) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "are not in one world of MPI: its world has")) << outcome.out;
  }
}

// The start's thread stays in MPI. The process ends, and does not finalise MPI.
class MpiHangTest : public MpiFailuresTest, public testing::WithParamInterface<const char*> {};

TEST_P(MpiHangTest, AStartThatHangsInMpiEndsAtItsTimeout) {
  job_.start(0, 1, "start", {{"BACKPLANE_STUB", std::string("hang=") + GetParam()}, {"BACKPLANE_TEST_TIMEOUT", "1"}});
  const Outcome outcome = job_.wait().front();
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "failed (")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "MPI_Finalize was called 0 times")) << outcome.out;
}

INSTANTIATE_TEST_SUITE_P(Functions, MpiHangTest,
                         testing::Values("MPI_Init_thread", "MPI_Comm_create_group", "MPI_Comm_dup"),
                         [](const auto& of) { return std::string(of.param); });

TEST_F(MpiFailuresTest, AFinalizeThatHangsDelaysTheEndBySeconds) {
  const auto begin = std::chrono::steady_clock::now();
  expect_start({{"BACKPLANE_STUB", "hang=MPI_Finalize"}}, "started\npassed\nMPI_Finalize was called 1 times");
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(elapsed, std::chrono::seconds(4)) << "the other ranks have 4 s";
  EXPECT_LT(elapsed, std::chrono::seconds(30)) << "then the process ends without them";
}

TEST_F(MpiFailuresTest, MpiIsFinalisedOnceByAllRanks) {
  for (int rank = 0; rank < 2; ++rank) job_.start(rank, 2, "start");
  for (const Outcome& outcome : job_.wait()) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "started\npassed\nMPI_Finalize was called 1 times\n") << outcome.err;
  }
}

// Operations that end while MPI has their memory, by a timeout and otherwise.
class MpiMemoryTest : public MpiFailuresTest, public testing::WithParamInterface<const char*> {};

TEST_P(MpiMemoryTest, LivesUntilMpiHasCompletedTheRequest) {
  expect_output("abandoned", {{"BACKPLANE_TEST_ENDING", GetParam()}}, "passed");
}

TEST_F(MpiFailuresTest, MemoryOfTheProgramIsReturnedByMpi) {
  for (const char* ending : {"cancel", "abort"}) {
    job_.start(0, 1, "direct", {{"BACKPLANE_TEST_ENDING", ending}});
    const Outcome outcome = job_.wait().back();
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "passed")) << outcome.out << outcome.err;
  }
}

TEST_P(MpiMemoryTest, OfTheProgramThatMpiKeepsEndsTheProcess) {
  job_.start(0, 1, "direct-killed", {{"BACKPLANE_TEST_ENDING", GetParam()}});
  const Outcome outcome = job_.wait().front();
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.err,
                       "backplane: mpi: rank 0 ends, because MPI still uses memory of the program 50 ms "
                       "after its all_reduce was given up ("))
      << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

// All_reduces of two ranks go in parts if they have more than 8 KiB.
TEST_F(MpiFailuresTest, SizesOfAllReducesThatDifferAreNamed) {
  const auto start = [](StubJob& job, int rank, const char* count) {
    job.start(rank, 2, "parts-differ", {{"BACKPLANE_TEST_COUNT", count}, {"BACKPLANE_FINGERPRINT", "off"}});
  };
  start(job_, 0, "4096");
  start(job_, 1, "6144");
  for (const Outcome& outcome : job_.wait()) {
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "4096") && contains(outcome.out, "6144")) << outcome.out;
  }
  StubJob undivided(BACKPLANE_TEST_STUB_RANKS);
  start(undivided, 0, "4096");
  start(undivided, 1, "2048");
  for (const Outcome& outcome : undivided.wait()) EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

TEST_F(MpiFailuresTest, MemoryOfPartsLivesUntilMpiHasCompletedTheirRequests) {
  job_.expect_ended(2, "parts-abandoned");
}

INSTANTIATE_TEST_SUITE_P(Endings, MpiMemoryTest, testing::Values("timeout", "cancel", "abort", "destroy"),
                         [](const auto& of) { return std::string(of.param); });

TEST_F(MpiFailuresTest, AReceiveWithoutAMessageLendsNoMemory) { expect_output("direct-unmatched", {}, "passed"); }

TEST_F(MpiFailuresTest, AnAbortEndsTheOperationsOfAllRanks) {
  StubJob job(BACKPLANE_TEST_COMMAND);
  job.expect_ended(3, "abort");
}

TEST_F(MpiFailuresTest, DeadlinesHoldWhereARankDoesNotCome) {
  StubJob job(BACKPLANE_TEST_COMMAND);
  job.expect_ended(3, "deadline");
}

TEST_F(MpiFailuresTest, AShrunkGroupIsMadeFromTheFirst) { expect_output("shrunk", {}, "passed"); }

TEST_F(MpiFailuresTest, AMessageThatComesWhileItsReceiveIsCancelledIsReceived) { expect_output("late", {}, "passed"); }

TEST_F(MpiFailuresTest, DestroyEndsAlthoughMpiDoesNotReturn) {
  expect_output("hung", {}, "passed\nMPI_Finalize was called 1 times");
}

TEST_F(MpiFailuresTest, TheProcessEndsAlthoughMpiDoesNotReturn) {
  expect_output("stuck", {}, "passed\nMPI_Finalize was called 0 times");
}

TEST_F(MpiFailuresTest, AWaitDoesNotSleepWhileMpiMovesItsData) { expect_output("steps", {}, "passed"); }

TEST_F(MpiFailuresTest, ThreadsMakeGroupsAtOnce) { job_.expect_passed(2, "groups-at-once"); }

TEST_F(MpiFailuresTest, ThreadsSubmitAndWaitAtOnce) { job_.expect_passed(2, "threads"); }

TEST_F(MpiFailuresTest, OperationsThatNoThreadWaitsForEnd) { job_.expect_passed(2, "unattended"); }

}  // namespace
}  // namespace backplane::test
