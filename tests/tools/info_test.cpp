// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

Setting with_plugin(const std::string& fault) { return {{{"BACKPLANE_PLUGIN_PATH", plugin_directory(fault)}}}; }

TEST(Info, ShowsOptionsAndOperations) {
  const Outcome outcome = run({"info", "TRACE"}, with_plugin("trace"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"trace 1.0\n", "BackendType.TRACE", "the tests", "tags (send and recv match tags)",
                           "threads  int   2        1..64  threads of its own", "send       cpu     -           u8",
                           "Implemented by the core over send and recv:\n  barrier, broadcast"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part << "\n" << outcome.out;
  }
  EXPECT_FALSE(contains(outcome.out, "noise"));
}

TEST(Info, PrintsJson) {
  const Outcome outcome = run({"info", "trace", "--json"}, with_plugin("trace"));
  const auto info = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(info["id"], "trace");
  const std::vector<std::string> completed = info["completed"];
  EXPECT_EQ(std::count(completed.begin(), completed.end(), "all_reduce"), 1);
  EXPECT_EQ(std::count(completed.begin(), completed.end(), "send"), 0);
}

TEST(Info, SuggestsTheNearestName) {
  const Outcome outcome = run({"info", "inprocc"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(outcome.err.starts_with("backplane: unknown backend 'inprocc'. Did you mean 'inproc'?")) << outcome.err;
}

TEST(Info, SurvivesFaultyPlugins) {
  const Outcome crashed = run({"info", "crash"}, with_plugin("crash"));
  EXPECT_EQ(crashed.code, 1);
  EXPECT_EQ(
      crashed.err,
      "backplane: backend crash: crashed with SIGSEGV while its plugin was loaded; remove or update this plugin\n");
  const Outcome left = run({"info", "exit"}, with_plugin("exit"));
  EXPECT_EQ(left.code, 1);
  EXPECT_EQ(left.err,
            "backplane: backend exit: ended the process with exit code 0 while its plugin was loaded; "
            "remove or update this plugin\n");
}

}  // namespace
}  // namespace backplane::test
