// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backplane/conformance/conformance.hpp"

namespace backplane::conformance {
namespace {

const std::string kNasty = "a<b>&\"c\" \\ 'd'\n\x1b[31m \x01 \xff \xed\xa0\x80 \xef\xbf\xbf ü€\t#";

Result result(const std::string& name, Verdict verdict) {
  Result made;
  made.group = "p2p";
  made.name = name;
  made.about = "a rule";
  made.verdict = verdict;
  made.seconds = 0.25;
  made.seed = 7;
  return made;
}

Report sample() {
  Report report;
  report.subject = "/tmp/backplane_acme.so";
  report.backend = "acme";
  report.version = "1.2";
  report.ranks = 4;
  report.seed = 7;
  report.seconds = 12.34;
  report.results = {result("good", Verdict::kPassed), result("bad", Verdict::kFailed),
                    result("left", Verdict::kSkipped), result("out", Verdict::kSkipped)};
  report.results[1].findings = {{2, "7", kNasty, "receiving"}, {-1, "", "it hung", ""}};
  report.results[1].output = "first\nsecond\n";
  report.results[1].reproduce = "backplane check x -n 4";
  report.results[2].reason = report.results[3].reason = "needs any-source";
  report.matrix = {{BP_SEND, BP_U8, 0, BP_HOST, 3, 0},
                   {BP_ALL_REDUCE, BP_F32, BP_SUM, BP_HOST, 1, 1},
                   {BP_ALL_REDUCE, BP_C128, BP_SUM, BP_HOST, 0, 0},
                   {BP_SCAN, BP_F32, BP_MAX, BP_HOST, 1, 0}};
  return report;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(TextReport, BeginsWithTheSummary) {
  const std::string text = to_text(sample());
  EXPECT_EQ(
      text.substr(0, text.find('\n')),
      "acme 1.2 (/tmp/backplane_acme.so) at 4 ranks: 1 passed, 1 failed, 2 skipped in 12.3 s (level must, seed 7)");
}

TEST(TextReport, TellsExpectedActualRankDoingAndHowToReproduce) {
  const std::string text = to_text(sample());
  EXPECT_TRUE(contains(text, "FAILED p2p.bad: a rule\n    rank 2: expected 7\n            got a<b>")) << text;
  EXPECT_TRUE(contains(text, "            while receiving\n    the supervisor: it hung\n")) << text;
  EXPECT_TRUE(contains(text, "      | first\n      | second\n    reproduce: backplane check x -n 4\n")) << text;
}

TEST(TextReport, GroupsSkipsByReason) {
  EXPECT_TRUE(contains(to_text(sample()), "Skipped:\n    needs any-source: p2p.left, p2p.out\n"));
}

// The cell in the column of a dtype and the line that begins with `row`.
char mark(const std::string& text, const std::string& row, const std::string& dtype) {
  const auto line = [&text](const std::string& begin) {
    const size_t at = text.find("\n    " + begin) + 1;
    return text.substr(at, text.find('\n', at) - at);
  };
  const size_t column = line("               bool").find(" " + dtype) + 1;
  const std::string cells = line(row);
  return column < cells.size() ? cells[column] : ' ';
}

TEST(TextReport, ShowsTheMatrix) {
  const std::string text = to_text(sample());
  EXPECT_EQ(mark(text, "send ", "u8"), '+') << text;
  EXPECT_EQ(mark(text, "send ", "f32"), ' ') << text;
  EXPECT_EQ(mark(text, "all_reduce sum ", "f32"), '!') << text;
  EXPECT_EQ(mark(text, "all_reduce sum ", "c128"), '.') << text;
  EXPECT_EQ(mark(text, "scan max ", "f32"), '+') << text;
}

TEST(TextReport, MovesNoCursor) {
  const std::string text = to_text(sample());
  EXPECT_FALSE(contains(text, "\x1b"));
  EXPECT_FALSE(contains(text, "\x01"));
  EXPECT_TRUE(contains(to_text(sample(), true), "\x1b[31mFAILED\x1b[0m p2p.bad"));
}

TEST(TextReport, TellsTrouble) {
  Report report = sample();
  report.error = "no memory";
  EXPECT_TRUE(contains(to_text(report), "The check itself could not be completed: no memory\n"));
  EXPECT_EQ(exit_code(report), 2);
}

TEST(ExitCode, IsThatOfTheMustLevel) {
  Report report = sample();
  EXPECT_EQ(exit_code(report), 1);
  report.results[1].level = Level::kFull;
  EXPECT_EQ(exit_code(report), 0);
  report.results[1].outdated = true;
  EXPECT_EQ(exit_code(report), 1);
  report.results[1].outdated = false;
  report.results[1].level = Level::kThorough;
  EXPECT_EQ(exit_code(report), 1);
}

TEST(ResultLine, HasVerdictTimeAndTheFirstFinding) {
  const Report report = sample();
  EXPECT_EQ(result_line(report.results[0]), "passed p2p.good (0.2 s)");
  EXPECT_TRUE(result_line(report.results[1]).starts_with("FAILED p2p.bad (0.2 s): rank 2 got a<b>"));
  EXPECT_TRUE(result_line(report.results[1]).ends_with(", expected 7"));
  EXPECT_EQ(result_line(report.results[2]), "skipped p2p.left: needs any-source");
}

TEST(Badge, HasTheBackendAndTheResult) {
  Report report = sample();
  report.backend = "a<b>";
  EXPECT_TRUE(contains(to_badge(report), ": a&lt;b&gt; 1.2</text>")) << to_badge(report);
  EXPECT_TRUE(contains(to_badge(report), "fill=\"#b3261e\"")) << to_badge(report);
  EXPECT_TRUE(contains(to_badge(report), ">1 failed, 1 passed, 2 not applicable</text>")) << to_badge(report);
  report.results.erase(report.results.begin() + 1);
  EXPECT_TRUE(contains(to_badge(report), "fill=\"#2e7d32\"")) << to_badge(report);
  report.error = "no memory";
  EXPECT_TRUE(contains(to_badge(report), ">not checked</text>")) << to_badge(report);
}

TEST(TextReport, HasNotes) {
  Report report = sample();
  report.notes = {"the file has\nanother name"};
  EXPECT_TRUE(contains(to_text(report), "\nNote: the file has another name\n"));
}

// A known failure is in all formats, and is not counted as failed.
Report with_known_failure() {
  Report report = sample();
  report.results[1].known = "the library is <wrong>";
  return report;
}

TEST(KnownFailure, IsNotCounted) {
  const Report report = with_known_failure();
  EXPECT_EQ(exit_code(report), 0);
  const std::string text = to_text(report);
  EXPECT_TRUE(contains(text, "1 passed, 0 failed, 1 known, 2 skipped")) << text;
  EXPECT_TRUE(contains(text, "\nknown: p2p.bad: the library is <wrong>\n    got a<b>")) << text;
  EXPECT_FALSE(contains(text, "FAILED")) << text;
}

TEST(KnownFailure, IsInTheOtherFormats) {
  const Report report = with_known_failure();
  EXPECT_TRUE(contains(to_tap(report), "\nnot ok 2 - p2p.bad # TODO known: the library is <wrong>\n"));
  const std::string junit = to_junit(report);
  EXPECT_TRUE(contains(junit, "<skipped message=\"known: the library is &lt;wrong&gt;\"/>")) << junit;
  EXPECT_TRUE(contains(junit, "tests=\"4\" failures=\"0\" errors=\"0\" skipped=\"3\"")) << junit;
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["known"], 1);
  EXPECT_EQ(json["results"][1]["verdict"], "failed");
  EXPECT_EQ(json["results"][1]["known"], "the library is <wrong>");
}

TEST(TapReport, IsVersion13) {
  const std::string text = to_tap(sample());
  EXPECT_TRUE(text.starts_with("TAP version 13\n1..4\n")) << text;
  EXPECT_TRUE(contains(text, "\nok 1 - p2p.good\nnot ok 2 - p2p.bad\n  ---\n  rule: \"a rule\"\n")) << text;
  EXPECT_TRUE(contains(text, "\n  ...\nok 3 - p2p.left # SKIP needs any-source\n")) << text;
  EXPECT_TRUE(contains(text, "      actual: \"a<b>&\\\"c\\\" \\\\ 'd'\\n")) << text;
  Report report = sample();
  report.error = "no memory";
  EXPECT_TRUE(contains(to_tap(report), "\nBail out! no memory\n"));
}

TEST(TapReport, DoesNotCountTheFullLevelAsFailed) {
  Report report = sample();
  report.results[1].level = Level::kFull;
  EXPECT_TRUE(contains(to_tap(report), "not ok 2 - p2p.bad # TODO "));
}

TEST(JsonReport, IsJson) {
  Report report = sample();
  report.results[1].findings[0].actual = kNasty;
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["backend"], "acme");
  EXPECT_EQ(json["passed"], 1);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["skipped"], 2);
  ASSERT_EQ(json["results"].size(), 4U);
  const auto& failed = json["results"][1];
  EXPECT_EQ(failed["verdict"], "failed");
  EXPECT_EQ(failed["findings"][0]["rank"], 2);
  EXPECT_EQ(failed["findings"][0]["expected"], "7");
  EXPECT_TRUE(failed["findings"][0]["actual"].get<std::string>().starts_with("a<b>&\"c\" \\ 'd'\n\xEF\xBF\xBD[31m"));
  EXPECT_EQ(failed["output"], "first\nsecond\n");
  EXPECT_EQ(json["matrix"][1]["reduce_op"], "sum");
  EXPECT_EQ(json["matrix"][1]["failed"], 1);
  EXPECT_FALSE(json["matrix"][0].contains("reduce_op"));
}

TEST(JsonReport, OfNothingIsJson) {
  const auto json = nlohmann::json::parse(to_json(Report()));
  EXPECT_TRUE(json["results"].empty());
  EXPECT_TRUE(json["matrix"].empty());
}

TEST(JunitReport, IsWellFormed) {
  Report report = sample();
  report.error = kNasty;
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("backplane-junit-" + std::to_string(::getpid()) + ".xml");
  std::ofstream(file) << to_junit(report);
  const std::string program =
      "import sys, xml.etree.ElementTree as e\n"
      "root = e.parse(sys.argv[1]).getroot()\n"
      "bad = root.find(\"testsuite/testcase[@name='bad']/failure\")\n"
      "assert bad.get('message').startswith('a<b>&\"c\" ') and 'expected: 7' in bad.text, bad.text\n"
      "assert len(root.findall('testsuite/testcase/skipped')) == 2\n"
      "assert root.get('tests') == '5' and root.get('errors') == '1'\n";
  const std::string script = file.string() + ".py";
  std::ofstream(script) << program;
  EXPECT_EQ(std::system(("python3 " + script + " " + file.string()).c_str()), 0);
  std::filesystem::remove(file);
  std::filesystem::remove(script);
}

TEST(ProgressLine, AlignsTheNumber) {
  EXPECT_EQ(progress_line({12, 110, nullptr, "p2p.tag-match"}), "[ 12/110] p2p.tag-match");
}

}  // namespace
}  // namespace backplane::conformance
