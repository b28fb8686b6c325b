// SPDX-License-Identifier: Apache-2.0
//
// Programs under the launchers of MPI libraries, without further variables.
#include <gtest/gtest.h>

#include <fstream>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

struct MpiLauncher {
  const char* name;
  const char* path;  // empty: not installed
  std::vector<std::string> options;
  const char* agent;  // the option for the program that reaches other hosts
  const char* hosts;
};

// Without hwloc: its daemon copies the topology to an address that may not be free, and crashes then.
const MpiLauncher kOpenMpi = {
    "Open MPI", BACKPLANE_TEST_OPEN_MPI, {"--oversubscribe -mca rtc ^hwloc"}, "-mca plm_rsh_agent", "--host"};
const MpiLauncher kHydra = {"MPICH", BACKPLANE_TEST_HYDRA, {}, "-launcher rsh -launcher-exec", "-hosts"};

void PrintTo(const MpiLauncher* launcher, std::ostream* out) { *out << launcher->name; }

class LaunchersTest : public testing::TestWithParam<const MpiLauncher*> {
 protected:
  void SetUp() override {
    if (std::string(BACKPLANE_TEST_HELLO).empty()) GTEST_SKIP() << "the examples are not built";
    if (*GetParam()->path == '\0') GTEST_SKIP() << GetParam()->name << " is not installed";
  }

  void expect_sum(const std::string& arguments, int ranks, const std::string& backend = "") {
    const MpiLauncher& launcher = *GetParam();
    const std::string command = std::string(launcher.path) + " " + join(launcher.options) + arguments;
    const Outcome outcome =
        run({"-c", command + " " BACKPLANE_TEST_HELLO},
            {{{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}, {"BACKPLANE_BACKEND", backend}},
             {},
             "/bin/sh"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string line = "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " over " + backend;
      EXPECT_TRUE(contains(outcome.out, line)) << outcome.out << outcome.err;
    }
    EXPECT_TRUE(contains(outcome.out, "add up to " + std::to_string(ranks * (ranks - 1) / 2))) << outcome.out;
  }

  std::string on_two_hosts() const {
    const std::string hosts = GetParam() == &kOpenMpi ? " a:2,b:2" : " a,b";
    return std::string(GetParam()->agent) + " " + agent() + " " + GetParam()->hosts + hosts + " -n 4";
  }

  // A program instead of ssh that runs the commands of two imagined hosts here. Each has its own TMPDIR, because
  // daemons of Open MPI that make the same directory at once may fail.
  std::string agent() const {
    const std::string path = place_.file("agent");
    std::ofstream(path) << "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                        << "export TMPDIR=" << place_.file("") << "$1\nmkdir -p \"$TMPDIR\"\nshift\n"
                        << "exec sh -c \"$*\"\n";
    fs::permissions(path, fs::perms(0755));
    return path;
  }

  static std::string join(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += word + " ";
    return text;
  }

  const ScopedDirectory place_;
};

TEST_P(LaunchersTest, RanksOfOneHostMeet) { expect_sum("-n 3", 3); }

TEST_P(LaunchersTest, RanksOfTwoHostsMeet) { expect_sum(on_two_hosts(), 4); }

// MPI begins on the connection by which the ranks have met.
TEST_P(LaunchersTest, RanksOfOneHostMeetAndStartMpi) { expect_sum("-n 3", 3, "mpi"); }

INSTANTIATE_TEST_SUITE_P(All, LaunchersTest, testing::Values(&kOpenMpi, &kHydra),
                         [](const auto& of) { return of.param == &kOpenMpi ? "OpenMpi" : "Hydra"; });

}  // namespace
}  // namespace backplane::test
