// SPDX-License-Identifier: Apache-2.0
//
// Groups over the MPI libraries that are installed, each under its own launcher. ranks.cpp is the program.
#include <gtest/gtest.h>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

struct Mpi {
  const char* name;
  const char* launcher;  // empty: not installed
  const char* options;
};

// Without hwloc: its daemon copies the topology to an address that may not be free, and crashes then.
const Mpi kOpenMpiLibrary = {"OpenMpi", BACKPLANE_TEST_OPEN_MPI, "--oversubscribe -mca rtc ^hwloc"};
const Mpi kMpichLibrary = {"Mpich", BACKPLANE_TEST_HYDRA, ""};

void PrintTo(const Mpi* mpi, std::ostream* out) { *out << mpi->name; }

class MpiTest : public testing::TestWithParam<const Mpi*> {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    if (*GetParam()->launcher == '\0') GTEST_SKIP() << GetParam()->name << " is not installed";
  }

  // The command that starts `ranks` ranks.
  std::string job(int ranks, const std::string& scenario) const {
    return std::string(GetParam()->launcher) + " " + GetParam()->options + " -n " + std::to_string(ranks) +
           " " BACKPLANE_TEST_MPI_RANKS " " + scenario + " " + place_.file(scenario);
  }
  static Outcome run_command(const std::string& command, const std::map<std::string, std::string>& environment = {}) {
    std::map<std::string, std::string> all = environment;
    all.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
    return run({"-c", command}, {all, {}, "/bin/sh"});
  }
  Outcome run_ranks(const std::string& scenario, const std::map<std::string, std::string>& environment = {}) {
    return run_command(job(kRanks, scenario), environment);
  }
  // Of Backplane's own commands, which serve PMI-1 and, if that is built, PMIx.
  static bool can_start_ranks() {
    return GetParam() == &kMpichLibrary || !std::string(BACKPLANE_TEST_PMIX_SERVER).empty();
  }
  static Setting library() {
    return {{{"BACKPLANE_MPI_LIBRARY", GetParam() == &kOpenMpiLibrary ? "libmpi.so.40" : "libmpich.so.12"}}};
  }
  static Outcome check(const std::vector<std::string>& cases) {
    std::vector<std::string> arguments = {"check", "mpi", "--ranks", "3", "--timeout-scale", "4"};
    for (const std::string& one : cases) arguments.insert(arguments.end(), {"--filter", one});
    return run(arguments, library());
  }
  static void expect_passed(const Outcome& outcome) {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(contains(outcome.out, "rank " + std::to_string(rank) + " passed")) << outcome.out << outcome.err;
    }
  }

  const ScopedDirectory place_;
};

TEST_P(MpiTest, OperationsOfAGroupWhoseRanksAreOthersThanThoseOfMpi) {
  const Outcome outcome = run_ranks("world");
  expect_passed(outcome);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_P(MpiTest, OperationsOnTheProgramsMemory) {
  const Outcome outcome = run_ranks("direct");
  expect_passed(outcome);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_P(MpiTest, SmallAllReduces) {
  const Outcome outcome = run_ranks("all_reduces");
  expect_passed(outcome);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_P(MpiTest, CollectivesOfTheCoreOverMessages) {
  const Outcome outcome = run_ranks("messages");
  expect_passed(outcome);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_P(MpiTest, AProgramThatUsesMpiFinalisesIt) {
  const Outcome outcome = run_ranks("own");
  expect_passed(outcome);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

// The launcher may report that MPI was not finalised.
TEST_P(MpiTest, AbortEndsTheOperationsOfAllRanks) { expect_passed(run_ranks("abort")); }

TEST_P(MpiTest, DeadlinesHoldWhereARankDoesNotCome) { expect_passed(run_ranks("deadline")); }

// Launchers report ranks that have not finalised MPI.
TEST_P(MpiTest, AProgramWhoseGroupFailedToStartEndsInOrder) {
  const Outcome outcome = run_command("BACKPLANE_TEST_JOB=1 " + job(1, "fallback") + " & BACKPLANE_TEST_JOB=0 " +
                                      job(1, "fallback") + " && wait $!");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

TEST_P(MpiTest, ALibraryThatIsMissingIsNamed) {
  const Outcome outcome = run_ranks("world", {{"BACKPLANE_MPI_LIBRARY", "/nowhere/libmpi.so"}});
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.out, "/nowhere/libmpi.so")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "BACKPLANE_MPI_LIBRARY")) << outcome.out;
}

// By itself the plugin would take Open MPI's, and Python loads MPI outside the global scope.
TEST_P(MpiTest, TheLibraryOfTheProgramIsUsedAndItsForkedChildIsRefused) {
  if (GetParam() != &kMpichLibrary) GTEST_SKIP() << "Open MPI comes first without that";
  const Outcome outcome = run({"local", "-"}, {{}, {}, BACKPLANE_TEST_MPI_RANKS});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

// A rank that has nothing to wait for makes no calls, but its peers need it: MPI moves data only inside its calls.
TEST_P(MpiTest, OperationsProgressWithoutCalls) {
  if (!can_start_ranks()) GTEST_SKIP() << "the PMIx server is not built";
  const Outcome outcome = check({"async.autonomous-progress", "async.notify-*", "p2p.order-kept"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, " 0 skipped")) << outcome.out;
}

// MPICH would end the survivors in MPI_Finalize.
TEST_P(MpiTest, ProcessesOutliveOnesThatDoNotFinaliseMpi) {
  if (!can_start_ranks()) GTEST_SKIP() << "the PMIx server is not built";
  const Outcome outcome = check({"death.report", "death.clean-exit-told-apart"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

TEST_P(MpiTest, RanksOfBackplaneRun) {
  if (!can_start_ranks()) GTEST_SKIP() << "the PMIx server is not built";
  const Outcome outcome =
      run({"run", "-n", "2", "--backend", "mpi", BACKPLANE_TEST_MPI_RANKS, "world", place_.file("run")}, library());
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "rank 1 passed")) << outcome.out;
}

// Open MPI 4 adds with saturation, MPICH 4.0 compares unsigned bytes as signed ones.
TEST_P(MpiTest, ReductionsOfSmallIntegersAreThoseOfTheCore) {
  if (!can_start_ranks()) GTEST_SKIP() << "the PMIx server is not built";
  const Outcome outcome = check({"collectives.integer-overflow", "collectives.misaligned"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, " 0 skipped")) << outcome.out;
}

// The launcher is not told that the ranks use the backend mpi.
TEST_P(MpiTest, RanksThatOpenMpiCannotStartInSayHowToStartThem) {
  if (GetParam() != &kOpenMpiLibrary) GTEST_SKIP() << "the others speak PMI-1, which each job has";
  const Outcome outcome = run({"run", "-n", "2", BACKPLANE_TEST_MPI_RANKS, "world", place_.file("run")},
                              {{{"BACKPLANE_MPI_LIBRARY", "libmpi.so.40"}}});
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.out, "on one node with 'backplane run -n N --backend mpi PROGRAM'")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "'mpirun -n N PROGRAM' of Open MPI")) << outcome.out;
}

// MPI itself would end the process.
TEST_P(MpiTest, AConnectionThatTheRanksHaveUsedIsNamed) {
  if (GetParam() != &kMpichLibrary) GTEST_SKIP() << "only launchers of PMI-1 give a connection";
  const Outcome outcome = run_ranks("too-late", library().environment);
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  expect_passed(outcome);
}

TEST_P(MpiTest, AConnectionThatIsLeftToMpiEndsWithoutIt) {
  if (GetParam() != &kMpichLibrary) GTEST_SKIP() << "only launchers of PMI-1 give a connection";
  const Outcome outcome = run_ranks("without-mpi");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  expect_passed(outcome);
}

INSTANTIATE_TEST_SUITE_P(All, MpiTest, testing::Values(&kOpenMpiLibrary, &kMpichLibrary),
                         [](const auto& of) { return of.param->name; });

}  // namespace
}  // namespace backplane::test
