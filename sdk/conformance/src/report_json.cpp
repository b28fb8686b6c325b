// SPDX-License-Identifier: Apache-2.0
//
// A report as one JSON object (RFC 8259).
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "names.hpp"
#include "report_words.hpp"
#include "say.hpp"

namespace backplane::conformance {
namespace {

std::string value_of(std::string_view text) {
  std::string result = "\"";
  for (const char c : harmless(text)) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else {
      result += c;
    }
  }
  return result + "\"";
}
std::string value_of(const char* text) { return value_of(std::string_view(text)); }
std::string value_of(const std::string& text) { return value_of(std::string_view(text)); }
std::string value_of(double number) { return std::isfinite(number) ? decimal(number, 6) : "null"; }
template <typename Integer>
std::enable_if_t<std::is_integral_v<Integer>, std::string> value_of(Integer number) {
  return std::to_string(number);
}

// {"key": value, ...} on one line.
class Object {
 public:
  template <typename Value>
  Object& add(const char* key, const Value& value) {
    return add_ready(key, value_of(value));
  }
  // `value` is JSON already.
  Object& add_ready(const char* key, const std::string& value) {
    text_ += say(text_.empty() ? "" : ", ", value_of(key), ": ", value);
    return *this;
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

std::string array(const std::vector<std::string>& values, const std::string& indent) {
  if (values.empty()) return "[]";
  std::string text = "[";
  for (const std::string& value : values) text += (text.size() > 1 ? ",\n  " : "\n  ") + indent + value;
  return text + "\n" + indent + "]";
}

std::string of(const Finding& finding) {
  return Object()
      .add("rank", finding.rank)
      .add("expected", finding.expected)
      .add("actual", finding.actual)
      .add("doing", finding.doing)
      .text();
}

std::string of(const Result& result) {
  std::vector<std::string> findings;
  for (const Finding& finding : result.findings) findings.push_back(of(finding));
  Object object;
  object.add("group", result.group).add("name", result.name).add("about", result.about);
  object.add("level", level_name(result.level)).add("verdict", verdict_name(result.verdict));
  if (result.verdict == Verdict::kSkipped) object.add("reason", result.reason);
  if (!findings.empty()) object.add_ready("findings", array(findings, "    "));
  if (!result.output.empty()) object.add("output", result.output);
  object.add("seconds", result.seconds).add("seed", result.seed);
  if (!result.reproduce.empty()) object.add("reproduce", result.reproduce);
  return object.text();
}

std::string of(const Cell& cell) {
  Object object;
  object.add("op", op_name(cell.op)).add("dtype", dtype_name(cell.dtype));
  if (is_reduction(cell.op)) object.add("reduce_op", reduce_op_name(cell.reduce_op));
  return object.add("memory", memory_name(cell.memory)).add("passed", cell.passed).add("failed", cell.failed).text();
}

}  // namespace

std::string to_json(const Report& report) {
  std::vector<std::string> results;
  for (const Result& result : report.results) results.push_back(of(result));
  std::vector<std::string> cells;
  for (const Cell& cell : report.matrix) cells.push_back(of(cell));
  const auto [passed, failed, skipped] = count_verdicts(report);
  const auto member = [](const char* key, const std::string& value) {
    return say("  ", value_of(key), ": ", value, ",\n");
  };
  return "{\n" + member("subject", value_of(report.subject)) + member("backend", value_of(report.backend)) +
         member("version", value_of(report.version)) + member("ranks", value_of(report.ranks)) +
         member("level", value_of(level_name(report.level))) + member("seed", value_of(report.seed)) +
         member("seconds", value_of(report.seconds)) + member("trouble", value_of(report.trouble)) +
         member("passed", value_of(passed)) + member("failed", value_of(failed)) +
         member("skipped", value_of(skipped)) + member("results", array(results, "  ")) +
         say("  ", value_of("matrix"), ": ", array(cells, "  "), "\n}\n");
}

}  // namespace backplane::conformance
