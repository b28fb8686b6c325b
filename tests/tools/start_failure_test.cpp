// SPDX-License-Identifier: Apache-2.0
//
// Jobs in which one rank cannot start: the others report why, at once, instead of waiting for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/groups.hpp"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

constexpr const char* kLimit = "150";  // seconds; a rank waits for the others for 30 minutes

// Three ranks join the job after `fault`, a shell command, was run on rank 1.
Outcome run_with_fault(const std::string& fault, const std::vector<std::string>& options) {
  std::vector<std::string> words = {"run", "-n", "3", "--timeout", kLimit};
  words.insert(words.end(), options.begin(), options.end());
  const std::string script = "if [ $RANK = 1 ]; then " + fault + "; fi; echo init | exec " BACKPLANE_TEST_LIVENESS_RANK;
  words.insert(words.end(), {"sh", "-c", script});
  return run(words);
}

// The number of the ranks 0 and 2 that have printed `text`.
size_t told(const Outcome& outcome, const std::string& text) {
  size_t count = 0;
  for (const char* rank : {"[0] ", "[2] "}) count += contains(outcome.out, rank + text) ? 1 : 0;
  return count;
}

class StartFailure : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, StartFailure, testing::ValuesIn(process_backends()),
                         [](const auto& test) { return test.param; });

TEST_P(StartFailure, ARankThatExitsBeforeItJoinsIsNamed) {
  const Outcome outcome = run_with_fault("exit 0", {"--backend", GetParam()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;  // the ranks print the error and exit with 0
  EXPECT_EQ(told(outcome, "error 5 1 rank 1 ("), 2U) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, ") is lost: its process exited with code 0 before it joined")) << outcome.out;
}

#ifdef BACKPLANE_TEST_zmq
// The launcher reports through a store that asks for the secret.
TEST(SecureStartFailure, ARankThatExitsBeforeItJoinsIsNamed) {
  const Outcome outcome = run_with_fault("exit 0", {"--backend", "zmq", "--secure"});
  EXPECT_EQ(told(outcome, "error 5 1 rank 1 ("), 2U) << outcome.out << outcome.err;
}
#endif

TEST_P(StartFailure, AKilledRankIsNamedToThoseThatKeepGoing) {
  const Outcome outcome = run_with_fault("kill -9 $$", {"--backend", GetParam(), "--keep-going"});
  EXPECT_EQ(outcome.code, 128 + 9) << outcome.err;
  EXPECT_EQ(told(outcome, "error 5 1 rank 1 ("), 2U) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "is lost: its process was killed by signal 9 (Killed)")) << outcome.out;
}

// Each rank prints the reason of rank 1, whose backend cannot start, while the backends of the others wait for it.
void expect_reason(const std::string& fault, const std::string& backend, int32_t status, const std::string& reason) {
  const Outcome outcome = run_with_fault(fault, {"--backend", backend});
  EXPECT_EQ(outcome.code, 0) << outcome.err;  // the ranks print the error and exit with 0
  for (const char* rank : {"[0] ", "[2] "}) {
    const std::string line = fmt::format(
        "{}error {} 1 group 'world' cannot start: rank 1 could not start backend {} for group 'world': ", rank, status,
        backend);
    EXPECT_TRUE(contains(outcome.out, line)) << outcome.out << outcome.err;
  }
  EXPECT_TRUE(contains(outcome.out, reason)) << outcome.out << outcome.err;
}

#ifdef BACKPLANE_TEST_zmq
TEST(StartFailureReason, Zmq) {
  expect_reason("ulimit -n 14", "zmq", BP_RESOURCE, "raise this process's limit (ulimit -n)");
}
#endif
#ifdef BACKPLANE_TEST_gloo
TEST(StartFailureReason, Gloo) {
  expect_reason("export GLOO_SOCKET_IFNAME=none0", "gloo", BP_INVALID,
                "the network interface 'none0', which does not exist");
}
#endif

}  // namespace
}  // namespace backplane::test
