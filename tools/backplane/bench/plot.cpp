// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "bench/report.hpp"

namespace backplane::tool {
namespace {

constexpr double kWidth = 560;  // of a panel
constexpr double kHeight = 340;
constexpr double kLeft = 64;
constexpr double kRight = 150;  // room for the legend
constexpr double kTop = 36;
constexpr double kBottom = 44;
// Okabe and Ito's colours, which colour-blind people can tell apart.
constexpr std::array<const char*, 8> kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                 "#E69F00", "#56B4E9", "#000000", "#999999"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return result;
}

// The results of one operation with one number of ranks.
class Panel {
 public:
  explicit Panel(std::vector<const Measured*> points) : points_(std::move(points)) {
    for (const Measured* point : points_) {
      const auto bytes = static_cast<double>(std::max<uint64_t>(point->row.bytes, 1));
      const double us = std::max(percentile(point->found.us, 0.5), 1e-3);
      smallest_ = std::min(smallest_, bytes);
      largest_ = std::max(largest_, bytes);
      low_ = std::min(low_, std::floor(std::log10(us)));
      high_ = std::max(high_, std::ceil(std::log10(us) + 1e-9));
    }
  }

  std::string svg() const {
    std::string text = fmt::format("<text class=\"title\" x=\"{}\" y=\"20\">{}, {} ranks: median, us</text>\n", kLeft,
                                   bench::name_of(points_[0]->row.test), points_[0]->ranks);
    for (double exponent = low_; exponent <= high_; ++exponent) {
      const double y = y_of(std::pow(10, exponent));
      text += fmt::format(
          "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
          "<text text-anchor=\"end\" x=\"{3}\" y=\"{4:.1f}\">{5:g}</text>\n",
          kLeft, kWidth - kRight, y, kLeft - 6, y + 4, std::pow(10, exponent));
    }
    return text + sizes() + lines();
  }

 private:
  double x_of(double bytes) const {
    const double span = std::log2(largest_ / smallest_);
    const double share = span > 0 ? std::log2(bytes / smallest_) / span : 0.5;
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y_of(double us) const {
    return kHeight - kBottom - (std::log10(us) - low_) / (high_ - low_) * (kHeight - kTop - kBottom);
  }

  std::string sizes() const {
    std::string text;
    std::vector<uint64_t> seen;
    for (const Measured* point : points_) {
      const uint64_t bytes = point->row.bytes;
      if (bytes == 0 || std::find(seen.begin(), seen.end(), bytes) != seen.end()) continue;
      seen.push_back(bytes);
      text += fmt::format("<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                          x_of(static_cast<double>(bytes)), kHeight - kBottom + 18, size_text(bytes));
    }
    return text;
  }

  std::string lines() const {
    std::vector<std::string> subjects;
    for (const Measured* point : points_) {
      if (std::find(subjects.begin(), subjects.end(), point->subject) == subjects.end())
        subjects.push_back(point->subject);
    }
    std::string text;
    for (size_t i = 0; i < subjects.size(); ++i) text += line(subjects[i], i);
    return text;
  }

  std::string line(const std::string& subject, size_t number) const {
    const char* const colour = kColours[number % kColours.size()];
    std::string path;
    std::string dots;
    for (const Measured* point : points_) {
      if (point->subject != subject) continue;
      const double us = percentile(point->found.us, 0.5);
      const double x = x_of(static_cast<double>(std::max<uint64_t>(point->row.bytes, 1)));
      const double y = y_of(std::max(us, 1e-3));
      path += fmt::format("{:.1f},{:.1f} ", x, y);
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}, {}: {:.2f} us</title></circle>\n", x, y,
          colour, escaped(subject), size_text(point->row.bytes), us);
    }
    const double y = kTop + 8 + 18 * static_cast<double>(number);
    return fmt::format(
        "<polyline points=\"{0}\" fill=\"none\" stroke=\"{1}\" stroke-width=\"2\"/>\n{2}"
        "<rect x=\"{3}\" y=\"{4}\" width=\"12\" height=\"3\" fill=\"{1}\"/><text x=\"{5}\" y=\"{6}\">{7}</text>\n",
        path, colour, dots, kWidth - kRight + 12, y, kWidth - kRight + 30, y + 5, escaped(subject));
  }

  std::vector<const Measured*> points_;
  double smallest_ = 1e300;
  double largest_ = 1;
  double low_ = 1e300;  // decades
  double high_ = -1e300;
};

}  // namespace

std::string bench_svg(const BenchReport& report) {
  std::vector<std::vector<const Measured*>> panels;
  for (const Measured& one : report.results) {
    const bool more =
        !panels.empty() && panels.back()[0]->ranks == one.ranks && panels.back()[0]->row.test == one.row.test;
    if (!more) panels.emplace_back();
    panels.back().push_back(&one);
  }
  const size_t columns = panels.size() > 1 ? 2 : 1;
  const size_t rows = (panels.size() + columns - 1) / columns;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text{{font:12px sans-serif;fill:#222}}.title{{font-weight:bold}}.grid{{stroke:#ddd}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth * static_cast<double>(columns), kHeight * static_cast<double>(std::max<size_t>(rows, 1)));
  for (size_t i = 0; i < panels.size(); ++i) {
    text += fmt::format("<g transform=\"translate({},{})\">\n", kWidth * static_cast<double>(i % columns),
                        kHeight * static_cast<double>(i / columns));
    text += Panel(panels[i]).svg() + "</g>\n";
  }
  return text + "</svg>\n";
}

}  // namespace backplane::tool
