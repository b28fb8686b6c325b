// SPDX-License-Identifier: Apache-2.0
//
// The Test Anything Protocol, version 13 (testanything.org).
#include "report_words.hpp"
#include "say.hpp"

namespace backplane::conformance {
namespace {

// A double-quoted YAML scalar.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : harmless(text)) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else {
      result += c;
    }
  }
  return result + "\"";
}

// In a description, "#" begins a directive.
std::string description(std::string_view text) {
  std::string result;
  for (const char c : one_line(text)) {
    if (c == '#' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string diagnosis(const Result& result) {
  std::string text = "  ---\n";
  text += say("  rule: ", quoted(result.about), "\n  level: ", level_name(result.level), "\n  findings:\n");
  for (const Finding& finding : result.findings) {
    text += say("    - rank: ", finding.rank, "\n      expected: ", quoted(finding.expected),
                "\n      actual: ", quoted(finding.actual), "\n      step: ", quoted(finding.step), "\n");
  }
  if (!result.output.empty()) text += say("  output: ", quoted(result.output), "\n");
  text += say("  seed: ", result.seed, "\n  reproduce: ", quoted(result.reproduce), "\n");
  return text + "  ...\n";
}

}  // namespace

std::string to_tap(const Report& report) {
  std::string text = say("TAP version 13\n1..", report.results.size(), "\n# ", one_line(report.backend), " ",
                         one_line(report.version), " at ", report.ranks, " ranks, seed ", report.seed, "\n");
  size_t number = 0;
  for (const Result& result : report.results) {
    const bool failed = result.verdict == Verdict::kFailed;
    text += say(failed ? "not ok " : "ok ", ++number, " - ", description(full_name(result)));
    if (result.verdict == Verdict::kSkipped) text += say(" # SKIP ", one_line(result.reason));
    if (failed && result.level == Level::kFull) text += " # TODO not at the level that every backend must reach";
    text += "\n";
    if (failed) text += diagnosis(result);
  }
  if (!report.error.empty()) text += say("Bail out! ", one_line(report.error), "\n");
  return text;
}

}  // namespace backplane::conformance
