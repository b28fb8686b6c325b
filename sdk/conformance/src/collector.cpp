// SPDX-License-Identifier: Apache-2.0
#include "collector.hpp"

#include <algorithm>
#include <utility>

namespace backplane::conformance {
namespace {

constexpr size_t kOutputKept = 4096;

}  // namespace

void Collector::add_finding(int32_t member, const std::string& expected, const std::string& actual,
                            const std::string& step, Nanoseconds at, bool is_last) {
  findings_.push_back({{member, expected, actual, step}, at, is_last});
}

void Collector::take(const Record& record) {
  const auto number = [&record](size_t i) { return static_cast<uint32_t>(record.number(i)); };
  switch (record.kind) {
    case Record::kFinding:
    case Record::kFatal:  // a record that was too long has lost its last field, the time
      add_finding(record.member, record.text(0), record.text(1), record.text(2),
                  record.text(3).empty() ? now() : record.number(3), record.kind == Record::kFatal);
      break;
    case Record::kSkip:
      add_skip(record.text(0));
      break;
    case Record::kHarnessError:
      add_harness_error(record.text(0));
      break;
    case Record::kCell:
      outcomes_.cells.push_back({number(0), number(1), number(2), number(3), number(4), 1 - std::min(1U, number(4))});
      break;
    case Record::kLog:
      keep_output(fmt::format("rank {} logged: {}\n", record.member, record.text(1)));
      break;
    case Record::kFacts:
      outcomes_.facts.add(record.fields);
      break;
    default:
      break;
  }
}

void Collector::keep_output(std::string_view text) {
  outcomes_.output += text.substr(0, kOutputKept - std::min(kOutputKept, outcomes_.output.size()));
  if (reported_by_sanitizer_ || !has_sanitizer_report(text)) return;
  reported_by_sanitizer_ = true;
  add_finding(-1, "no report of a sanitizer", std::string(text.substr(0, 600)), "");
}

Outcomes Collector::finish() {
  outcomes_.findings = causes(std::move(findings_));
  return std::move(outcomes_);
}

}  // namespace backplane::conformance
