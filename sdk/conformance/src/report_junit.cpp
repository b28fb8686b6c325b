// SPDX-License-Identifier: Apache-2.0
//
// JUnit XML, as CI systems read it: a test suite per group.
#include <algorithm>
#include <vector>

#include "report_words.hpp"
#include "say.hpp"

namespace backplane::conformance {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : harmless(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\n':
        result += "&#10;";  // an attribute would lose it otherwise
        break;
      case '\t':
        result += "&#9;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string failure(const Result& result) {
  std::string text;
  for (const Finding& finding : result.findings) {
    text += finding.rank < 0 ? std::string("the supervisor") : say("rank ", finding.rank);
    if (!finding.expected.empty()) text += say("\n  expected: ", finding.expected);
    text += say("\n  actual:   ", finding.actual);
    if (!finding.step.empty()) text += say("\n  while:    ", finding.step);
    text += "\n";
  }
  text += say("rule: ", result.about, "\nreproduce: ", result.reproduce, "\n");
  const std::string message = result.findings.empty() ? result.about : result.findings.front().actual;
  return say("      <failure type=\"", level_name(result.level), "\" message=\"", escaped(message), "\">",
             escaped(text), "</failure>\n");
}

std::string test_case(const Result& result) {
  std::string text = say("    <testcase classname=\"", escaped(result.group), "\" name=\"", escaped(result.name),
                         "\" time=\"", decimal(result.seconds, 3), "\">\n");
  if (result.verdict == Verdict::kSkipped) {
    text += say("      <skipped message=\"", escaped(result.reason), "\"/>\n");
  }
  if (result.verdict == Verdict::kFailed) text += failure(result);
  if (!result.output.empty()) text += say("      <system-out>", escaped(result.output), "</system-out>\n");
  return text + "    </testcase>\n";
}

std::string suite(const std::string& group, const Report& report) {
  std::string inside;
  std::array<size_t, 3> counts = {};
  double seconds = 0;
  for (const Result& result : report.results) {
    if (result.group != group) continue;
    ++counts[static_cast<size_t>(result.verdict)];
    seconds += result.seconds;
    inside += test_case(result);
  }
  return say("  <testsuite name=\"", escaped(group), "\" tests=\"", counts[0] + counts[1] + counts[2], "\" failures=\"",
             counts[1], "\" errors=\"0\" skipped=\"", counts[2], "\" time=\"", decimal(seconds, 3), "\">\n", inside,
             "  </testsuite>\n");
}

}  // namespace

std::string to_junit(const Report& report) {
  std::vector<std::string> groups;
  for (const Result& result : report.results) {
    if (std::find(groups.begin(), groups.end(), result.group) == groups.end()) groups.push_back(result.group);
  }
  const auto [passed, failed, skipped] = count_verdicts(report);
  const size_t errors = report.error.empty() ? 0 : 1;
  std::string text =
      say("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"backplane check ",
          escaped(one_line(report.backend)), "\" tests=\"", passed + failed + skipped + errors, "\" failures=\"",
          failed, "\" errors=\"", errors, "\" skipped=\"", skipped, "\" time=\"", decimal(report.seconds, 3), "\">\n");
  for (const std::string& group : groups) text += suite(group, report);
  if (errors > 0) {
    text += say("  <testsuite name=\"harness\" tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\">\n",
                "    <testcase classname=\"harness\" name=\"completes\"><error message=\"", escaped(report.error),
                "\"/></testcase>\n  </testsuite>\n");
  }
  return text + "</testsuites>\n";
}

}  // namespace backplane::conformance
