// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kRemedy = "; remove or update this plugin";

Json backend(const Json& list, const std::string& id) {
  for (const Json& each : list["backends"]) {
    if (each["id"] == id) return each;
  }
  ADD_FAILURE() << "no " << id << " in " << list;
  return {};
}

TEST(List, ShowsBackendsRejectedFilesAndDirectories) {
  const ScopedDirectory place;
  fs::create_directory(place.file("bad"));
  fs::permissions(place.file(""), fs::perms(0755));
  std::ofstream(place.file("bad/backplane_broken.so")) << "no ELF file";
  const std::string path = plugin_directory("crash") + ":" + place.file("bad");
  const Outcome outcome = run({"list"}, {{{"BACKPLANE_PLUGIN_PATH", path}}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* column : {"ID ", "VERSION  ", "KINDS  ", "AUTH  ", "ABI  ", "FILE"}) {
    EXPECT_TRUE(contains(outcome.out, column)) << outcome.out;
  }
  EXPECT_TRUE(contains(outcome.out, "crash/backplane_crash.so")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "bad/backplane_broken.so\n      ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "BACKPLANE_PLUGIN_PATH  read")) << outcome.out;
}

TEST(List, ExplainsUnavailableBackends) {
  const Outcome outcome =
      run({"list"}, {{{"BACKPLANE_PLUGIN_PATH", plugin_directory("crash")}, {"BACKPLANE_PLUGINS_DENY", "crash"}}});
  EXPECT_TRUE(contains(outcome.out, "\n    denied by BACKPLANE_PLUGINS_DENY; remove it from that list\n"))
      << outcome.out;
  const Outcome allowed =
      run({"list"}, {{{"BACKPLANE_PLUGIN_PATH", plugin_directory("crash")}, {"BACKPLANE_PLUGINS_ALLOW", "zmq"}}});
  EXPECT_TRUE(contains(allowed.out, "\n    denied: not named in BACKPLANE_PLUGINS_ALLOW;")) << allowed.out;
}

TEST(List, RunsNoPluginCode) {
  const ScopedDirectory place;
  const Setting setting = {{{"BACKPLANE_PLUGIN_PATH", plugin_directory("trace") + ":" + plugin_directory("crash")},
                            {"BACKPLANE_TEST_TRACE", place.file("trace")}}};
  const Outcome outcome = run({"list", "--json"}, setting);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(backend(Json::parse(outcome.out), "trace")["state"], "available");
  EXPECT_FALSE(fs::exists(place.file("trace")));
  run({"list", "--probe"}, setting);
  EXPECT_TRUE(fs::exists(place.file("trace"))) << "the fixture writes no trace";
}

TEST(List, ProbesEachBackendInAChild) {
  std::string path;
  for (const char* fault : {"trace", "crash", "exit", "hang"}) path += plugin_directory(fault) + ":";
  const Outcome outcome =
      run({"list", "--json", "--probe", "--probe-timeout", "10"}, {{{"BACKPLANE_PLUGIN_PATH", path}}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json list = Json::parse(outcome.out);  // without output of the plugins
  EXPECT_EQ(backend(list, "self")["viable"], true);
  EXPECT_EQ(backend(list, "crash")["viable"], false);
  EXPECT_EQ(backend(list, "crash")["viability"], std::string("crashed with SIGSEGV while probing") + kRemedy);
  EXPECT_EQ(backend(list, "exit")["viability"],
            std::string("ended the process with exit code 0 while probing") + kRemedy);
  EXPECT_EQ(backend(list, "hang")["viability"], std::string("did not answer within 10 s while probing") + kRemedy);
  EXPECT_TRUE(contains(backend(list, "trace")["viability"], "libmissing.so was not found")) << list;
}

TEST(List, ProbesInTheTable) {
  const Outcome outcome = run({"list", "--probe"}, {{{"BACKPLANE_PLUGIN_PATH", plugin_directory("crash")}}});
  EXPECT_TRUE(contains(outcome.out, "\n    not viable: crashed with SIGSEGV while probing; remove or update"))
      << outcome.out;
}

TEST(List, ShowsLogLinesOfProbes) {
  const Outcome outcome = run({"list", "--probe"}, {{{"BACKPLANE_PLUGIN_PATH", plugin_directory("remark")}}});
  EXPECT_TRUE(contains(outcome.out, "\n    viable: remark: a remark; remark: a remark of a thread\n")) << outcome.out;
  EXPECT_TRUE(contains(outcome.err, "backplane: remark: a warning\n")) << outcome.err;
}

TEST(Command, RejectsWrongUsageInOneLine) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "A subcommand is required"},
      {{"lisst"},
       "unknown subcommand 'lisst'; the subcommands are list, info, check, bench, explain, doctor, new, trace, run"},
      {{"list", "--jsn"}, "not expected: --jsn (see 'backplane list --help')"},
      {{"info"}, "name is required (see 'backplane info --help')"},
      {{"run", "-n", "2"}, "no program is given"},
      {{"run", "true"}, "--ranks is required"},
      {{"run", "-n", "0", "true"}, "--ranks: Value 0 not in range 1 to 65536"},
      {{"run", "-n", "1", "--bogus", "true"}, "not expected: --bogus"},
      {{"run", "-n", "1", "--nnodes", "2", "true"}, "--nnodes needs --master-addr and --master-port"},
      {{"run", "-n", "1", "--node-rank", "1", "true"}, "--node-rank is 1, but --nnodes 1 allows 0 to 0"},
      {{"new", "nccl"}, "'nccl' is the id of a bundled plugin: a new backplane_nccl.so would shadow it"},
      {{"new", "auto"}, "'auto' stands for the backend that Backplane chooses"},
      {{"__query", "probe", "self"}, "this subcommand is for the command's own use"}};
  for (const auto& [words, sentence] : cases) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("backplane: ")) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, sentence)) << outcome.err;
  }
}

TEST(Command, PrintsHelpAndVersion) {
  EXPECT_TRUE(run({"--version"}).out.starts_with("backplane 1."));
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(contains(help.out, "list")) << help.out;
  EXPECT_FALSE(contains(help.out, "__query")) << help.out;
  EXPECT_TRUE(contains(run({"run", "--help"}).out, "PROGRAM [ARGUMENT]..."));
}

}  // namespace
}  // namespace backplane::test
