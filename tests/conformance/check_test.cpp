// SPDX-License-Identifier: Apache-2.0
//
// The command `backplane check`: errors of wrong use, report formats, and plugins that attack it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

const std::string kSpecimen = BACKPLANE_TEST_SPECIMEN;
const std::string kLayer = BACKPLANE_TEST_LAYER;

std::string misbehaving(const std::string& way) {
  return std::string(BACKPLANE_TEST_MISBEHAVING) + "/" + way + "/backplane_misbehaving.so";
}

Outcome check(std::vector<std::string> arguments, const Setting& setting = {}) {
  arguments.insert(arguments.begin(), "check");
  return run(arguments, setting);
}

// One quick case at two ranks.
Outcome quick(std::vector<std::string> arguments) {
  for (const char* word : {"-n", "2", "--filter", "p2p.tag-match"}) arguments.emplace_back(word);
  return check(arguments);
}

void expect_wrong_use(const std::vector<std::string>& arguments, const std::string& sentence) {
  const Outcome outcome = check(arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, sentence)) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

TEST(Check, PassesAGoodPlugin) {
  const Outcome outcome = quick({kSpecimen});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("passed p2p.tag-match (")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "\nspecimen 1.0.0 (" + kSpecimen + ") at 2 ranks: 1 passed, 0 failed"))
      << outcome.out;
  EXPECT_EQ(outcome.err, "");  // no terminal, no progress
}

TEST(Check, FindsABackendByName) {
  const Outcome outcome = quick({"inproc"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "inproc 1.0.0 (Backplane (built in)) at 2 ranks: 1 passed")) << outcome.out;
}

TEST(Check, TestsTheApiOverABackend) {
  const Outcome outcome = check({"--api", "inproc", "-n", "2", "--filter", "p2p.any-tag", "--filter", "time.zero*"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "known: p2p.any-tag: programs cannot send with the tags of the core"))
      << outcome.out;
  EXPECT_TRUE(
      contains(outcome.out, "inproc 1.0.0 (Backplane (C++ API)) at 2 ranks: 2 passed, 0 failed, 1 known, 0 skipped"))
      << outcome.out;
}

TEST(Check, PrintsJson) {
  const Outcome outcome = quick({kSpecimen, "--format", "json", "--seed", "11"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["seed"], 11);
  EXPECT_EQ(json["results"][0]["name"], "tag-match");
  EXPECT_TRUE(outcome.err.starts_with("passed p2p.tag-match (")) << outcome.err;
}

// The first case passes; the second one hangs in init until the signal.
TEST(Check, WritesTheReportSoFarWhenItIsEnded) {
  const ScopedDirectory directory;
  for (const int signal : {SIGTERM, SIGINT}) {
    for (const std::string format : {"text", "json"}) {
      const std::string file = directory.file("report");
      Command command({"check", misbehaving("inithangs"), "-n", "2", "--timeout-scale", "1000", "--filter",
                       "load.opens", "--filter", "p2p.tag-match", "--format", format, "--output", file});
      ASSERT_TRUE(eventually([&command] { return contains(command.err(), "passed load.opens"); })) << command.err();
      command.signal(signal);
      const Outcome outcome = command.wait();
      EXPECT_EQ(outcome.code, 2);
      EXPECT_TRUE(contains(outcome.err, "ended the check during p2p.tag-match; the report has the cases before"))
          << outcome.err;
      const std::string report = read_file(file);
      if (format == "text") {
        EXPECT_TRUE(contains(report, ": 1 passed, 0 failed, 0 skipped")) << report;
        EXPECT_TRUE(contains(report, "could not be completed: it ended during p2p.tag-match, case 2 of 2")) << report;
        continue;
      }
      const auto json = nlohmann::json::parse(report);
      EXPECT_EQ(json["passed"], 1);
      EXPECT_EQ(json["error"], "it ended during p2p.tag-match, case 2 of 2");
    }
  }
}

TEST(Check, TakesFiltersBeforeAndAfterTheFile) {
  const auto names = [](const std::vector<std::string>& arguments) {
    const auto json = nlohmann::json::parse(check(arguments).out);
    std::vector<std::string> result;
    for (const auto& each : json["results"]) result.push_back(each["name"]);
    return result;
  };
  const std::vector<std::string> expected = {"tag-match", "any-tag"};
  EXPECT_EQ(names({kSpecimen, "-n", "2", "--format", "json", "--filter", "p2p.tag-match", "--filter", "p2p.any-tag"}),
            expected);
  EXPECT_EQ(names({"--filter", "p2p.tag-match", "--filter", "p2p.any-tag", kSpecimen, "-n", "2", "--format", "json"}),
            expected);
}

// Programs find a backend by the name of its file first.
TEST(Check, NamesAFileWithAnotherNameThanItsBackend) {
  const ScopedDirectory directory;
  const std::string file = directory.file("backplane_other.so");
  fs::copy_file(kSpecimen, file);
  const Outcome outcome = quick({file});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "\nNote: the file backplane_other.so holds the backend specimen; ")) << outcome.out;
  EXPECT_FALSE(contains(quick({kSpecimen}).out, "Note: "));
}

TEST(Check, StopsIfTheProbeRefuses) {
  Setting setting;
  setting.environment["SPECIMEN_MUTANT"] = "load.probe-harmless:2";
  const Outcome outcome = check({kSpecimen, "-n", "2", "--filter", "p2p"}, setting);
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "the probe of backend specimen refuses this machine: BP_UNSUPPORTED"))
      << outcome.out;
  EXPECT_FALSE(contains(outcome.out, "p2p.")) << outcome.out;
  EXPECT_EQ(check({kSpecimen, "-n", "2", "--filter", "load.opens"}, setting).code, 0);
}

TEST(Check, WritesTheReportToAFile) {
  const ScopedDirectory directory;
  const std::string file = directory.file("report.xml");
  const Outcome outcome = quick({kSpecimen, "--format", "junit", "--output", file});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(read_file(file).starts_with("<?xml"));
}

TEST(Check, FailsAWrongPlugin) {
  Setting setting;
  setting.environment["SPECIMEN_MUTANT"] = "no.such-mutant";  // its init refuses to start
  const Outcome outcome = check({kSpecimen, "-n", "2", "--filter", "p2p.tag-match", "--option", "backlog=8"}, setting);
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "FAILED p2p.tag-match: ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "reproduce: backplane check --option backlog=8 " + kSpecimen +
                                        " -n 2 --filter p2p.tag-match --seed "))
      << outcome.out;
}

// A plugin whose init refuses to start, so that the case fails.
Outcome check_with_known(const std::string& lines, const std::string& mutant) {
  const ScopedDirectory directory;
  const std::string file = directory.file("known");
  std::ofstream(file) << lines;
  Setting setting;
  if (!mutant.empty()) setting.environment["SPECIMEN_MUTANT"] = mutant;
  return check({kSpecimen, "-n", "2", "--filter", "p2p.tag-match", "--expect-failures", file}, setting);
}

TEST(CheckKnownFailures, AreExpected) {
  const std::string lines = "# of the specimen\n\np2p.tag-match: its init: refuses to start\n";
  const Outcome outcome = check_with_known(lines, "no.such-mutant");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "0 passed, 0 failed, 1 known, 0 skipped")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "known: p2p.tag-match: its init: refuses to start\n")) << outcome.out;
}

TEST(CheckKnownFailures, FailIfTheyPass) {
  const Outcome outcome = check_with_known("p2p.tag-match: no longer\n", "");
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "the supervisor: expected the known failure: no longer")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "the case passed; remove it from the known failures")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "reproduce: backplane check --expect-failures ")) << outcome.out;
}

// The report and the exit code agree, whatever the level of the case.
TEST(CheckKnownFailures, FailIfTheyPassAtTheFullLevel) {
  const ScopedDirectory directory;
  const std::string file = directory.file("known");
  std::ofstream(file) << "errors.names-the-operation: no longer\n";
  const Outcome outcome =
      check({kSpecimen, "-n", "2", "--filter", "errors.names-the-operation", "--expect-failures", file});
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "FAILED errors.names-the-operation: ")) << outcome.out;
  EXPECT_FALSE(contains(outcome.out, "(full level)")) << outcome.out;
}

TEST(CheckKnownFailures, MayPassIfIntermittent) {
  const std::string lines = "p2p.tag-match (intermittent): now and then\n";
  const Outcome passes = check_with_known(lines, "");
  EXPECT_EQ(passes.code, 0) << passes.out << passes.err;
  EXPECT_TRUE(contains(passes.out, "1 passed, 0 failed, 0 skipped")) << passes.out;
  const Outcome fails = check_with_known(lines, "no.such-mutant");
  EXPECT_EQ(fails.code, 0) << fails.out << fails.err;
  EXPECT_TRUE(contains(fails.out, "known: p2p.tag-match: now and then")) << fails.out;
}

TEST(CheckKnownFailures, LeaveTheOthersAsTheyAre) {
  const Outcome outcome = check_with_known("p2p.any-tag: another case\n", "no.such-mutant");
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "FAILED p2p.tag-match")) << outcome.out;
}

TEST(CheckKnownFailures, AreReadStrictly) {
  const auto refused = [](const std::string& lines) {
    const Outcome outcome = check_with_known(lines, "");
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    return outcome.err;
  };
  EXPECT_TRUE(contains(refused("\np2p.tag-match\n"), ": line 2: expected 'CASE: REASON'"));
  EXPECT_TRUE(contains(refused("p2p.tag-match:  \n"), ": line 1: expected 'CASE: REASON'"));
  EXPECT_TRUE(contains(refused("p2p.tag-mach: x\n"), "no such case: p2p.tag-mach; did you mean p2p.tag-match?"));
  EXPECT_TRUE(contains(refused("p2p.tag-match: x\np2p.tag-match: y\n"), "line 2: p2p.tag-match is listed twice"));
  expect_wrong_use({kSpecimen, "--expect-failures", "/no/such/list"},
                   "--expect-failures: cannot read /no/such/list: No such file or directory");
}

TEST(Check, ListsTheCases) {
  const Outcome outcome = check({"--list"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.out, "p2p.tag-match")) << outcome.out;
}

TEST(CheckWrongUse, IsExplained) {
  expect_wrong_use({}, "no plugin file or backend is given");
  expect_wrong_use({"/no/such/file.so"}, "cannot check /no/such/file.so: No such file or directory");
  expect_wrong_use({"/tmp/"}, "/tmp/ is a directory; name a plugin file in it, or a backend");
  expect_wrong_use({"nobody"}, "unknown backend 'nobody'");
  expect_wrong_use({kSpecimen, "--filter", "p2p.tag-mach"},
                   "--filter p2p.tag-mach: no such case; did you mean p2p.tag-match?");
  expect_wrong_use({kSpecimen, "--badge", "/tmp/badge.svg", "--filter", "p2p"},
                   "--badge: a badge stands for the whole");
  expect_wrong_use({kSpecimen, "-n", "0"}, "--ranks: Value 0 not in range 1 to 64");
  expect_wrong_use({kSpecimen, "-n", "65"}, "--ranks: Value 65 not in range 1 to 64");
  expect_wrong_use({kSpecimen, "--level", "some"}, "--level: some not in {must,full,thorough}");
  expect_wrong_use({kSpecimen, "--option", "port"}, "--option port: expected KEY=VALUE");
  expect_wrong_use({kSpecimen, "--option", "prot=1"}, "backend specimen has no option prot; it has address, port");
  expect_wrong_use({kSpecimen, "--backend", "other"}, "has no backend other; it has specimen");
}

// Opening a FIFO or a device can block indefinitely.
TEST(CheckWrongUse, OpensNothingButFiles) {
  const ScopedDirectory directory;
  const std::string fifo = directory.file("backplane_fifo.so");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_wrong_use({fifo}, fifo + " is not a regular file; name a plugin file, or a backend");
  expect_wrong_use({"/dev/null"}, "/dev/null is not a regular file");
}

TEST(CheckWrongUse, RefusesAFileBelowTheApi) {
  expect_wrong_use({"--api", kSpecimen}, "--api: name a backend, not a file");
}

TEST(CheckWrongUse, RefusesACompositeWithoutTheApi) {
  expect_wrong_use({"inproc+self"}, "inproc+self is a composite of the core, not a plugin; check it with --api");
  expect_wrong_use({"--api", "inproc+self", "--option", "a=b"}, "--option a: write the options of a composite behind");
}

TEST(CheckWrongUse, RefusesALayer) {
  expect_wrong_use({kLayer}, "chaos is a layer, and only backends can be checked");
  expect_wrong_use({"chaos"}, "chaos is a layer, and only backends can be checked");
}

// One rank checks nothing about larger worlds.
TEST(Check, SkipsCasesThatNeedMoreRanks) {
  const Outcome outcome = check({"inproc", "-n", "1", "--filter", "init", "--format", "json"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  std::map<std::string, std::string> reasons;
  const auto report = nlohmann::json::parse(outcome.out);
  for (const auto& result : report["results"]) {
    reasons[result["name"]] = result["verdict"] == "skipped" ? result["reason"] : result["verdict"];
  }
  EXPECT_EQ(reasons["world-1"], "passed");
  for (const char* name : {"each-world", "duplicate-rank", "size-mismatch", "missing-rank-named"}) {
    EXPECT_EQ(reasons[name], "needs 2 ranks") << name;
  }
}

TEST(Check, SaysInOneLineThatAFileIsNoPlugin) {
  const ScopedDirectory directory;
  const std::string file = directory.file("backplane_text.so");
  std::ofstream(file) << "this is no plugin\n";
  const Outcome outcome = check({"-n", "2", "--filter", "load.opens", "--filter", "p2p", file});
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("Backplane refuses this plugin: ")) << outcome.out;
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << outcome.out;
  const Outcome json = check({"-n", "2", "--format", "json", file});
  EXPECT_EQ(json.code, 1) << json.out << json.err;
  EXPECT_TRUE(nlohmann::json::parse(json.out)["error"].get<std::string>().starts_with("Backplane refuses this plugin"))
      << json.out;
  const std::string badge = directory.file("badge.svg");
  EXPECT_EQ(check({"-n", "2", "--badge", badge, file}).code, 1);
  EXPECT_TRUE(contains(read_file(badge), ">not checked</text>"));
}

struct Way {
  const char* name;
  bool refused;  // by the core
};

class Misbehaving : public testing::TestWithParam<Way> {};

// The check neither crashes nor hangs, and reports its findings.
TEST_P(Misbehaving, CannotHarmTheCheck) {
  const auto [name, refused] = GetParam();
  const Outcome outcome = check(
      {misbehaving(name), "-n", "2", "--timeout-scale", "0.3", "--filter", "load.opens", "--filter", "init.world-1"});
  EXPECT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.code << outcome.out << outcome.err;
  EXPECT_EQ(contains(outcome.out, "Backplane refuses this plugin: "), refused) << outcome.out << outcome.err;
  if (refused) {
    EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Misbehaving,
                         testing::Values(Way{"crash", true}, Way{"hang", true}, Way{"exit", true}, Way{"wild", true},
                                         Way{"killgroup", true}, Way{"killparent", true}, Way{"flood", true},
                                         Way{"close", true}, Way{"stopparent", false}, Way{"inithangs", false},
                                         Way{"scribble", true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace backplane::test
