// SPDX-License-Identifier: Apache-2.0
//
// Ranks that fork. The program makes the checks.
#include <gtest/gtest.h>

#include "support/groups.hpp"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

class ForkTest : public testing::TestWithParam<std::string> {
 protected:
  void expect_success(const std::string& rpc_backend, const std::map<std::string, std::string>& more = {}) {
    ScopedDirectory directory;
    std::map<std::string, std::string> environment = more;
    environment["TEST_DIRECTORY"] = directory.path().string();
    environment["BACKPLANE_RPC_BACKEND"] = rpc_backend;
    // A child has none of the threads that hold its parent's memory.
    environment["ASAN_OPTIONS"] = "detect_leaks=0:intercept_tls_get_addr=0";
    const Outcome outcome =
        run({"run", "-n", "2", "--backend", GetParam(), BACKPLANE_TEST_FORK_RANK}, {.environment = environment});
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ForkTest, testing::ValuesIn(process_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(ForkTest, AChildDoesNothingToItsParent) { expect_success("process_group"); }

TEST_P(ForkTest, AChildDoesNothingToItsParentsLayers) {
  expect_success("process_group", {{"BACKPLANE_LAYERS", "validate,matching"}});
}

TEST_P(ForkTest, AChildDoesNothingToItsParentsIsolatedBackends) {
  expect_success("process_group", {{"BACKPLANE_ISOLATE", "always"}});
}

}  // namespace
}  // namespace backplane::test
