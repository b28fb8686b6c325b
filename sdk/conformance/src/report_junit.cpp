// SPDX-License-Identifier: Apache-2.0
//
// JUnit XML, as CI systems read it: a test suite per group.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "report_words.hpp"

namespace backplane::conformance {
namespace {

std::string failure(const Result& result) {
  std::string text;
  for (const Finding& finding : result.findings) {
    text += finding.rank < 0 ? std::string("the supervisor") : fmt::format("rank {}", finding.rank);
    if (!finding.expected.empty()) text += fmt::format("\n  expected: {}", finding.expected);
    text += fmt::format("\n  actual:   {}", finding.actual);
    if (!finding.step.empty()) text += fmt::format("\n  while:    {}", finding.step);
    text += "\n";
  }
  text += fmt::format("rule: {}\nreproduce: {}\n", result.about, result.reproduce);
  const std::string message = result.findings.empty() ? result.about : result.findings.front().actual;
  return fmt::format("      <failure type=\"{}\" message=\"{}\">{}</failure>\n", level_name(result.level),
                     xml_escaped(message), xml_escaped(text));
}

std::string test_case(const Result& result) {
  std::string text = fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{}\">\n", xml_escaped(result.group),
                                 xml_escaped(result.name), decimal(result.seconds, 3));
  if (result.verdict == Verdict::kSkipped) {
    text += fmt::format("      <skipped message=\"{}\"/>\n", xml_escaped(result.reason));
  }
  if (!result.known.empty()) {
    text += fmt::format("      <skipped message=\"known: {}\"/>\n", xml_escaped(result.known));
  } else if (result.verdict == Verdict::kFailed) {
    text += failure(result);
  }
  if (!result.output.empty()) text += fmt::format("      <system-out>{}</system-out>\n", xml_escaped(result.output));
  return text + "    </testcase>\n";
}

std::string suite(const std::string& group, const Report& report) {
  std::string inside;
  std::array<size_t, 3> counts = {};
  double seconds = 0;
  for (const Result& result : report.results) {
    if (result.group != group) continue;
    ++counts[static_cast<size_t>(result.known.empty() ? result.verdict : Verdict::kSkipped)];
    seconds += result.seconds;
    inside += test_case(result);
  }
  return fmt::format(
      "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"{}\">\n{}  "
      "</testsuite>\n",
      xml_escaped(group), counts[0] + counts[1] + counts[2], counts[1], counts[2], decimal(seconds, 3), inside);
}

}  // namespace

std::string to_junit(const Report& report) {
  std::vector<std::string> groups;
  for (const Result& result : report.results) {
    if (std::find(groups.begin(), groups.end(), result.group) == groups.end()) groups.push_back(result.group);
  }
  const auto [passed, failed, skipped, known] = count_verdicts(report);
  const size_t errors = report.error.empty() ? 0 : 1;
  std::string text = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"backplane check {}\" tests=\"{}\" "
      "failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{}\">\n",
      xml_escaped(one_line(report.backend)), report.results.size() + errors, failed, errors, skipped + known,
      decimal(report.seconds, 3));
  for (const std::string& group : groups) text += suite(group, report);
  if (errors > 0) {
    text += fmt::format(
        "  <testsuite name=\"harness\" tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\">\n    <testcase "
        "classname=\"harness\" name=\"completes\"><error message=\"{}\"/></testcase>\n  </testsuite>\n",
        xml_escaped(report.error));
  }
  return text + "</testsuites>\n";
}

}  // namespace backplane::conformance
