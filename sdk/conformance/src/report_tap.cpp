// SPDX-License-Identifier: Apache-2.0
//
// The Test Anything Protocol, version 13 (testanything.org).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "report_words.hpp"

namespace backplane::conformance {
namespace {

// A double-quoted YAML scalar: JSON is a subset of YAML.
std::string scalar(std::string_view text) { return nlohmann::json(harmless(text)).dump(); }

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
  text += fmt::format("  rule: {}\n  level: {}\n  findings:\n", scalar(result.about), level_name(result.level));
  for (const Finding& finding : result.findings) {
    text += fmt::format("    - rank: {}\n      expected: {}\n      actual: {}\n      step: {}\n", finding.rank,
                        scalar(finding.expected), scalar(finding.actual), scalar(finding.step));
  }
  if (!result.output.empty()) text += fmt::format("  output: {}\n", scalar(result.output));
  text += fmt::format("  seed: {}\n  reproduce: {}\n", result.seed, scalar(result.reproduce));
  return text + "  ...\n";
}

}  // namespace

std::string to_tap(const Report& report) {
  std::string text = fmt::format("TAP version 13\n1..{}\n# {} {} at {} ranks, seed {}\n", report.results.size(),
                                 one_line(report.backend), one_line(report.version), report.ranks, report.seed);
  for (const std::string& note : report.notes) text += fmt::format("# {}\n", one_line(note));
  size_t number = 0;
  for (const Result& result : report.results) {
    const bool failed = result.verdict == Verdict::kFailed;
    text += fmt::format("{}{} - {}", failed ? "not ok " : "ok ", ++number, description(full_name(result)));
    if (result.verdict == Verdict::kSkipped) text += fmt::format(" # SKIP {}", one_line(result.reason));
    if (!result.known.empty()) {
      text += fmt::format(" # TODO known: {}", one_line(result.known));
    } else if (failed && result.level == Level::kFull && !result.outdated) {
      text += " # TODO not at the level that every backend must reach";
    }
    text += "\n";
    if (failed) text += diagnosis(result);
  }
  if (!report.error.empty()) text += fmt::format("Bail out! {}\n", one_line(report.error));
  return text;
}

}  // namespace backplane::conformance
