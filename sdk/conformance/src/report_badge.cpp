// SPDX-License-Identifier: Apache-2.0
//
// A report as a small SVG image for web pages: who was checked at the left, the result at the right.
#include <fmt/format.h>

#include "backplane/abi/version.h"
#include "report_words.hpp"

namespace backplane::conformance {
namespace {

constexpr double kCharacter = 6.6;  // width in pixels, of a sans-serif font of 11 pixels
constexpr double kMargin = 8;
constexpr size_t kLongest = 60;  // characters of a half

std::string short_text(const std::string& text) {
  std::string line = one_line(text);
  // Byte by byte: the ids and versions of plugins are ASCII.
  return line.size() <= kLongest ? line : harmless(line.substr(0, kLongest)) + "...";
}

// Half of the badge, from `left` on.
std::string half(double left, const std::string& text, const char* colour) {
  const double width = kCharacter * static_cast<double>(text.size());
  return fmt::format(
      "  <rect x=\"{:.1f}\" width=\"{:.1f}\" height=\"20\" fill=\"{}\"/>\n"
      "  <text x=\"{:.1f}\" y=\"14\" textLength=\"{:.1f}\">{}</text>\n",
      left, width + 2 * kMargin, colour, left + kMargin, width, xml_escaped(text));
}

}  // namespace

std::string to_badge(const Report& report) {
  const auto [passed, failed, skipped, known] = count_verdicts(report);
  const std::string who =
      short_text(fmt::format("Backplane ABI {}.{}: {} {}", BP_ABI_MAJOR, BP_ABI_MINOR,
                             report.backend.empty() ? "unknown backend" : report.backend, report.version));
  std::string result = fmt::format("{} passed, {} not applicable", passed, skipped);
  if (failed + known > 0) result = fmt::format("{} failed, {}", failed + known, result);
  if (!report.error.empty()) result = "not checked";
  const int code = exit_code(report);
  const char* colour = code == 2 ? "#767676" : (code == 1 ? "#b3261e" : "#2e7d32");
  const double left_width = kCharacter * static_cast<double>(who.size()) + 2 * kMargin;
  const double width = left_width + kCharacter * static_cast<double>(result.size()) + 2 * kMargin;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.1f}\" height=\"20\" role=\"img\" "
             "aria-label=\"{1}: {2}\" font-family=\"Verdana,DejaVu Sans,sans-serif\" font-size=\"11\" "
             "fill=\"#fff\">\n  <title>{1}: {2} (level {3}, {4} ranks, seed {5})</title>\n",
             width, xml_escaped(who), result, level_name(report.level), report.ranks, report.seed) +
         half(0, who, "#444") + half(left_width, result, colour) + "</svg>\n";
}

}  // namespace backplane::conformance
