// SPDX-License-Identifier: Apache-2.0
#include "report_words.hpp"

#include <algorithm>
#include <iomanip>
#include <locale>
#include <sstream>

namespace backplane::conformance {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the UTF-8 character at the beginning of `text`, 0 if there is none (Unicode 15, table 3-7).
size_t character_size(std::string_view text) {
  const auto byte = [text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&byte](size_t i) { return byte(i) >= 0x80 && byte(i) <= 0xBF; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned least = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned most = first == 0xED ? 0x9F : 0xBF;  // no surrogates
    return byte(1) >= least && byte(1) <= most && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned least = first == 0xF0 ? 0x90 : 0x80;
    const unsigned most = first == 0xF4 ? 0x8F : 0xBF;
    return byte(1) >= least && byte(1) <= most && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// Controls, C1 controls included, and the two codes at the end of the plane that XML forbids.
bool harmful(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
  if (character.size() == 2) return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
  return character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF";
}

}  // namespace

const char* level_name(Level level) { return level == Level::kMust ? "must" : "full"; }

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

bool is_reduction(uint32_t op) {
  return op == BP_REDUCE || op == BP_ALL_REDUCE || op == BP_REDUCE_SCATTER || op == BP_REDUCE_SCATTERV;
}

std::array<size_t, 3> count_verdicts(const Report& report) {
  std::array<size_t, 3> counts = {};
  for (const Result& result : report.results) ++counts[static_cast<size_t>(result.verdict)];
  return counts;
}

std::string harmless(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t size = character_size(text);
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

std::string decimal(double value, int digits) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

}  // namespace backplane::conformance
