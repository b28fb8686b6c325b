// SPDX-License-Identifier: Apache-2.0
#include "report_words.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backplane/base/utf8.hpp"

namespace backplane::conformance {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Control characters except newline and tab, and U+FFFE and U+FFFF, which XML forbids.
bool harmful(std::string_view character) {
  if (character == "\n" || character == "\t") return false;
  return base::is_control_character(character) || character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF";
}

}  // namespace

const char* level_name(Level level) {
  switch (level) {
    case Level::kMust:
      return "must";
    case Level::kFull:
      return "full";
    case Level::kThorough:
      break;
  }
  return "thorough";
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kSkipped:
      break;
  }
  return "skipped";
}

std::string full_name(const Result& result) { return result.group + "." + result.name; }

bool is_reduction(uint32_t op) { return op < BP_OP_COUNT && (BP_BIT(op) & BP_REDUCTIONS) != 0; }

std::array<size_t, 4> count_verdicts(const Report& report) {
  std::array<size_t, 4> counts = {};
  for (const Result& result : report.results) {
    ++counts[result.known.empty() ? static_cast<size_t>(result.verdict) : counts.size() - 1];
  }
  return counts;
}

std::string harmless(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t size = base::utf8_character_size(text);
    const std::string_view character = text.substr(0, std::max<size_t>(size, 1));
    if (size == 0 || harmful(character)) {
      result += kReplacement;
    } else {
      result += character;
    }
    text.remove_prefix(character.size());
  }
  return result;
}

std::string one_line(std::string_view text) {
  std::string line = harmless(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return line;
}

std::string xml_escaped(std::string_view text) {
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

std::string decimal(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

}  // namespace backplane::conformance
