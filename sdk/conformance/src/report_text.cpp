// SPDX-License-Identifier: Apache-2.0
//
// A report for people: the summary, what failed, what was skipped, and the capability matrix.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "names.hpp"
#include "report_words.hpp"

namespace backplane::conformance {
namespace {

constexpr const char* kIndent = "    ";

class Text {
 public:
  Text(const Report& report, bool colour) : report_(report), colour_(colour) {}

  std::string write() {
    summary();
    for (const Result& result : report_.results) {
      if (result.verdict == Verdict::kFailed && result.known.empty()) failure(result);
    }
    known_failures();
    skips();
    matrix();
    return std::move(text_);
  }

 private:
  template <typename... Parts>
  void line(fmt::format_string<const Parts&...> format, const Parts&... parts) {
    text_.append(fmt::format(format, parts...)).append(1, '\n');
  }

  std::string coloured(const char* code, const std::string& text) const {
    return colour_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
  }

  void summary() {
    const auto [passed, failed, skipped, known] = count_verdicts(report_);
    const char* colour = !report_.error.empty() || failed > 0 ? "31" : "32";
    std::string who = report_.backend.empty() ? "?" : one_line(report_.backend);
    if (!report_.version.empty()) who.append(1, ' ').append(one_line(report_.version));
    line("{} ({}) at {}{}{} in {} s (level {}, seed {})", who, one_line(report_.subject), report_.ranks,
         report_.ranks == 1 ? " rank: " : " ranks: ",
         coloured(colour, fmt::format("{} passed, {} failed, {}{} skipped", passed, failed,
                                      known > 0 ? fmt::format("{} known, ", known) : "", skipped)),
         decimal(report_.seconds, 1), level_name(report_.level), report_.seed);
    if (!report_.error.empty()) {
      line("{}{}", coloured("31", "The check itself could not be completed: "), one_line(report_.error));
    }
    for (const std::string& note : report_.notes) line("Note: {}", one_line(note));
  }

  void failure(const Result& result) {
    line("");
    line("{} {}{}: {}", coloured("31", "FAILED"), full_name(result),
         result.level == Level::kFull && !result.outdated ? " (full level)" : "", one_line(result.about));
    for (const Finding& finding : result.findings) {
      const std::string who = finding.rank < 0 ? "the supervisor" : fmt::format("rank {}", finding.rank);
      if (!finding.expected.empty()) line("{}{}: expected {}", kIndent, who, one_line(finding.expected));
      line("{}{}{}", kIndent, finding.expected.empty() ? who + ": " : std::string(who.size() + 2, ' ') + "got ",
           one_line(finding.actual));
      if (!finding.step.empty())
        line("{}{}while {}", kIndent, std::string(who.size() + 2, ' '), one_line(finding.step));
    }
    if (!result.output.empty()) {
      line("{}the ranks' output:", kIndent);
      std::string rest = harmless(result.output);
      while (!rest.empty()) {
        const size_t end = std::min(rest.find('\n'), rest.size());
        line("{}  | {}", kIndent, rest.substr(0, end));
        rest.erase(0, end + 1);
      }
    }
    if (!result.reproduce.empty()) line("{}reproduce: {}", kIndent, one_line(result.reproduce));
  }

  void known_failures() {
    bool is_first = true;
    for (const Result& result : report_.results) {
      if (result.known.empty()) continue;
      if (std::exchange(is_first, false)) line("");
      line("known: {}: {}", full_name(result), one_line(result.known));
      if (!result.findings.empty()) line("{}got {}", kIndent, one_line(result.findings.front().actual));
    }
  }

  // The skipped cases by reason, in the order of the reasons' first occurrence.
  void skips() {
    std::vector<std::pair<std::string, std::string>> reasons;
    for (const Result& result : report_.results) {
      if (result.verdict != Verdict::kSkipped) continue;
      const std::string reason = result.reason.empty() ? "no reason given" : one_line(result.reason);
      const auto known =
          std::find_if(reasons.begin(), reasons.end(), [&reason](const auto& entry) { return entry.first == reason; });
      if (known == reasons.end()) {
        reasons.emplace_back(reason, full_name(result));
      } else {
        known->second.append(", ").append(full_name(result));
      }
    }
    if (reasons.empty()) return;
    line("");
    line("Skipped:");
    for (const auto& [reason, names] : reasons) line("{}{}: {}", kIndent, reason, names);
  }

  static std::string row_name(const Cell& cell) {
    std::string name = op_name(cell.op);
    if (is_reduction(cell.op)) name += fmt::format(" {}", reduce_op_name(cell.reduce_op));
    if (cell.memory != BP_HOST) name += fmt::format(" ({})", memory_name(cell.memory));
    return name;
  }

  void matrix() {
    std::vector<std::pair<std::string, std::map<uint32_t, const Cell*>>> rows;
    size_t width = 0;
    for (const Cell& cell : report_.matrix) {
      const std::string name = row_name(cell);
      width = std::max(width, name.size());
      auto row = std::find_if(rows.begin(), rows.end(), [&name](const auto& each) { return each.first == name; });
      if (row == rows.end()) row = rows.insert(rows.end(), {name, {}});
      row->second[cell.dtype] = &cell;
    }
    if (rows.empty()) return;
    line("");
    line("Native operations (+ right, {} wrong, . declared but not tried, blank: not native):", coloured("31", "!"));
    std::string head = fmt::format("{}{:{}}", kIndent, "", width);
    for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) head += fmt::format(" {}", dtype_name(dtype));
    line("{}", head);
    for (const auto& [name, cells] : rows) line("{}", row_text(name, width, cells));
  }

  std::string row_text(const std::string& name, size_t width, const std::map<uint32_t, const Cell*>& cells) const {
    std::string row = fmt::format("{}{:{}}", kIndent, name, width);
    std::string gap;  // blanks before the next mark
    for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
      const std::string rest(std::string(dtype_name(dtype)).size() - 1, ' ');
      const auto cell = cells.find(dtype);
      if (cell == cells.end()) {
        gap.append(2, ' ').append(rest);
        continue;
      }
      row.append(gap).append(1, ' ').append(mark(*cell->second));
      gap = rest;
    }
    return row;
  }

  std::string mark(const Cell& cell) const {
    if (cell.failed > 0) return coloured("31", "!");
    return cell.passed > 0 ? "+" : ".";
  }

  const Report& report_;
  const bool colour_;
  std::string text_;
};

}  // namespace

std::string to_text(const Report& report, bool colour) { return Text(report, colour).write(); }

std::string result_line(const Result& result) {
  const std::string word = !result.known.empty()                ? "known"
                           : result.verdict == Verdict::kFailed ? "FAILED"
                                                                : verdict_name(result.verdict);
  std::string text = fmt::format("{} {}", word, full_name(result));
  if (result.verdict == Verdict::kSkipped) return text + ": " + one_line(result.reason);
  text += fmt::format(" ({} s)", decimal(result.seconds, 1));
  if (!result.known.empty()) return text + ": " + one_line(result.known);
  if (result.findings.empty()) return text;
  const Finding& first = result.findings.front();
  text += first.rank < 0 ? ": got " : fmt::format(": rank {} got ", first.rank);
  text += one_line(first.actual);
  return first.expected.empty() ? text : fmt::format("{}, expected {}", text, one_line(first.expected));
}

std::string progress_line(const Progress& progress) {
  const std::string total = std::to_string(progress.total);
  const std::string name = progress.last != nullptr ? full_name(*progress.last) : progress.running;
  return fmt::format("[{:>{}}/{}] {}", progress.done, total.size(), total, name);
}

}  // namespace backplane::conformance
