// SPDX-License-Identifier: Apache-2.0
//
// The PMIx server of `backplane run`, with programs of Open MPI.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

// Sets `server` in a script of a rank: PMIX_SERVER_URI3 is "pmix-server.PID;ADDRESS".
const std::string kServerPid = "server=${PMIX_SERVER_URI3#*.}; server=${server%%;*}\n";

class PmixTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string(BACKPLANE_TEST_PMIX_SERVER).empty()) GTEST_SKIP() << "the PMIx server is not built";
    if (std::string(BACKPLANE_TEST_OPEN_MPI).empty()) GTEST_SKIP() << "Open MPI is not installed";
  }

  Setting setting() const { return {{{"TMPDIR", place_.path().string()}}}; }
  Outcome run_ranks(const std::vector<std::string>& options, const std::string& mode) const {
    std::vector<std::string> words = {"run", "-n", "3"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {BACKPLANE_TEST_OPEN_MPI_RANK, mode});
    return run(words, setting());
  }
  bool is_empty() const { return fs::is_empty(place_.path()); }
  // The directory of Open MPI's shared memory, which rank 0 prints.
  static std::string shared_memory(const Outcome& outcome) {
    const std::string before = "[0] shared memory in ";
    const size_t at = outcome.out.find(before);
    if (at == std::string::npos) return "none";
    const size_t begin = at + before.size();
    return outcome.out.substr(begin, outcome.out.find('\n', begin) - begin);
  }
  void expect_nothing_left(const Outcome& outcome) const {
    EXPECT_TRUE(is_empty());
    EXPECT_TRUE(shared_memory(outcome).starts_with("/dev/shm/backplane-pmix-")) << outcome.out;
    EXPECT_FALSE(fs::exists(shared_memory(outcome)));
  }

  const ScopedDirectory place_;
};

TEST_F(PmixTest, OpenMpiStartsInTheRanks) {
  const Outcome outcome = run_ranks({"--pmix"}, "");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line : {"[0] rank 0 of 3: the ranks add up to 3", "[2] rank 2 of 3: the ranks add up to 3"}) {
    EXPECT_EQ(count_lines(outcome.out, line), 1U) << outcome.out;
  }
  expect_nothing_left(outcome);
  const Outcome named = run_ranks({"--backend", "mpi?native=false"}, "");
  EXPECT_EQ(count_lines(named.out, "[1] rank 1 of 3: the ranks add up to 3"), 1U) << named.out << named.err;
  const Outcome alone =
      run({"run", "-n", "1", "--backend", "mpi", "--no-pmi", BACKPLANE_TEST_OPEN_MPI_RANK}, setting());
  EXPECT_TRUE(contains(alone.out, "shared memory in /dev/shm\nrank 0 of 1")) << alone.out << alone.err;
}

TEST_F(PmixTest, AJobWithinAJobIsAWorldOfItsOwn) {
  const Outcome outcome = run(
      {"run", "-n", "1", "--pmix", BACKPLANE_TEST_COMMAND, "run", "-n", "2", "--pmix", BACKPLANE_TEST_OPEN_MPI_RANK},
      setting());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[1] rank 1 of 2: the ranks add up to 1"), 1U) << outcome.out << outcome.err;
  EXPECT_TRUE(is_empty());
  const Outcome without = run({"run", "-n", "1", "--pmix", BACKPLANE_TEST_COMMAND, "run", "-n", "2", "sh", "-c",
                               "echo ${PMIX_NAMESPACE-none} ${PMIX_RANK-none} ${JSM_JSRUN_PORT-none}"},
                              setting());
  EXPECT_EQ(count_lines(without.out, "[1] none none none"), 1U) << without.out << without.err;
}

TEST_F(PmixTest, MpiFailsWhereARankThatItWaitsForHasEnded) {
  const Outcome outcome = run_ranks({"--pmix", "--keep-going"}, "early");
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  for (const char* rank : {"rank 0 (", "rank 2 ("}) EXPECT_TRUE(contains(outcome.err, rank)) << outcome.err;
  EXPECT_FALSE(contains(outcome.out, "add up")) << outcome.out;
  expect_nothing_left(outcome);
}

TEST_F(PmixTest, FilesOfARankThatIsKilledAreRemoved) {
  const Outcome outcome = run_ranks({"--pmix"}, "killed");
  EXPECT_EQ(outcome.code, 137) << outcome.err;
  expect_nothing_left(outcome);
}

TEST_F(PmixTest, TheServerEndsWithItsLauncher) {
  Command command({"run", "-n", "1", "--pmix", "sh", "-c", "echo began; exec sleep 1000"}, setting());
  ASSERT_TRUE(eventually([&command] { return contains(command.out(), "began"); })) << command.err();
  EXPECT_FALSE(is_empty());
  ::kill(command.pid(), SIGKILL);
  EXPECT_TRUE(eventually([this] { return is_empty(); }));
}

// A signal may be sent to all processes of a job, and the ranks may use MPI until they end.
TEST_F(PmixTest, TheServerOutlivesSignalsThatEndAJob) {
  const Outcome outcome = run({"run", "-n", "1", "--pmix", "sh", "-c",
                               kServerPid + "kill -TERM $server && kill -INT $server && kill -HUP $server && exec " +
                                   BACKPLANE_TEST_OPEN_MPI_RANK},
                              setting());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "rank 0 of 1: the ranks add up to 0"), 1U) << outcome.out << outcome.err;
}

// Any process of the host can connect. Open MPI starts once the server has given that connection up.
TEST_F(PmixTest, AConnectionThatSendsNothingDoesNotPreventTheStart) {
  const Outcome outcome =
      run({"run", "-n", "1", "--pmix", "bash", "-c",
           std::string("exec 3<>/dev/tcp/127.0.0.1/${PMIX_SERVER_URI3##*:} && exec ") + BACKPLANE_TEST_OPEN_MPI_RANK},
          setting());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "rank 0 of 1: the ranks add up to 0"), 1U) << outcome.out << outcome.err;
}

TEST_F(PmixTest, TheLauncherRemovesTheFilesOfAKilledServer) {
  const Outcome outcome = run({"run", "-n", "1", "--pmix", "sh", "-c",
                               kServerPid + "touch $OMPI_MCA_btl_vader_backing_directory/file\n"
                                            "echo \"[0] shared memory in $OMPI_MCA_btl_vader_backing_directory\"\n"
                                            "kill -KILL $server"},
                              setting());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_nothing_left(outcome);
}

TEST_F(PmixTest, TheJobOfAnotherLauncherIsLeftAlone) {
  Setting outer = setting();
  outer.environment["PMIX_NAMESPACE"] = "prterun-1";
  const Outcome refused = run({"run", "-n", "1", "--pmix", "true"}, outer);
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.err, "PMIX_NAMESPACE is set")) << refused.err;
  const Outcome kept = run({"run", "-n", "1", "--backend", "mpi", "sh", "-c", "echo $PMIX_NAMESPACE"}, outer);
  EXPECT_EQ(kept.out, "prterun-1\n") << kept.err;
}

TEST_F(PmixTest, SeveralNodesAreRefused) {
  const Outcome outcome = run({"run", "-n", "1", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1",
                               "--master-port", "1", "--pmix", "true"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "--pmix is for jobs on one node")) << outcome.err;
}

TEST_F(PmixTest, AServerThatCannotStartIsNamed) {
  Setting nowhere = setting();
  nowhere.environment["TMPDIR"] = "/nowhere";
  const Outcome asked = run({"run", "-n", "1", "--pmix", "true"}, nowhere);
  EXPECT_EQ(asked.code, 1);
  EXPECT_TRUE(contains(asked.err, "cannot serve PMIx to the ranks: cannot make a directory in /nowhere: "))
      << asked.err;
  const Outcome not_asked = run({"run", "-n", "1", "--backend", "mpi", "true"}, nowhere);
  EXPECT_EQ(not_asked.code, 0);
  EXPECT_TRUE(contains(not_asked.err, "Open MPI will not start in them")) << not_asked.err;
}

}  // namespace
}  // namespace backplane::test
