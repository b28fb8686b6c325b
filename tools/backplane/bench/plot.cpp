// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bench/report.hpp"

namespace backplane::tool {
namespace {

constexpr double kWidth = 560;  // of a panel
constexpr double kHeight = 340;
constexpr double kLeft = 64;
constexpr double kRight = 150;  // for the legend
constexpr double kTop = 36;
constexpr double kBottom = 44;
constexpr double kLabelWidth = 56;
// Okabe and Ito, "Color Universal Design" (2008): distinguishable with colour blindness.
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

// One operation with one number of ranks.
class Panel {
 public:
  explicit Panel(std::vector<const Measurement*> points) : points_(std::move(points)) {
    for (const Measurement* point : points_) {
      smallest_ = std::min(smallest_, bytes_of(*point));
      largest_ = std::max(largest_, bytes_of(*point));
      low_ = std::min(low_, std::floor(std::log10(us_of(*point))));
      high_ = std::max(high_, std::ceil(std::log10(us_of(*point)) + 1e-9));
    }
  }

  std::string svg() const {
    std::string text = fmt::format("<text class=\"title\" x=\"{}\" y=\"20\">{}, {} ranks: median, us</text>\n", kLeft,
                                   escaped(points_[0]->operation), points_[0]->ranks);
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
  // Logarithms need positive values.
  static double bytes_of(const Measurement& point) { return static_cast<double>(std::max<uint64_t>(point.bytes, 1)); }
  static double us_of(const Measurement& point) { return std::max(point.p50_us, 1e-3); }

  double x_of(double bytes) const {
    const double span = std::log2(largest_ / smallest_);
    const double share = span > 0 ? std::log2(bytes / smallest_) / span : 0.5;
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y_of(double us) const {
    return kHeight - kBottom - (std::log10(us) - low_) / (high_ - low_) * (kHeight - kTop - kBottom);
  }

  // Labels of the sizes, as many as fit.
  std::string sizes() const {
    std::set<uint64_t> sizes;
    for (const Measurement* point : points_) sizes.insert(point->bytes);
    sizes.erase(0);
    std::string text;
    double end = -kLabelWidth;
    for (const uint64_t bytes : sizes) {
      const double x = x_of(static_cast<double>(bytes));
      if (x - end < kLabelWidth) continue;
      end = x;
      text += fmt::format("<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", x, kHeight - kBottom + 18,
                          size_text(bytes));
    }
    return text;
  }

  std::string lines() const {
    std::vector<std::string> backends;
    for (const Measurement* point : points_) {
      if (std::find(backends.begin(), backends.end(), point->backend) == backends.end())
        backends.push_back(point->backend);
    }
    std::string text;
    for (size_t i = 0; i < backends.size(); ++i) text += line(backends[i], i);
    return text;
  }

  std::string line(const std::string& backend, size_t number) const {
    const char* const colour = kColours[number % kColours.size()];
    std::map<uint64_t, const Measurement*> by_size;
    for (const Measurement* point : points_) {
      if (point->backend == backend) by_size[point->bytes] = point;
    }
    std::string path;
    std::string dots;
    for (const auto& [bytes, point] : by_size) {
      const double x = x_of(bytes_of(*point));
      const double y = y_of(us_of(*point));
      path += fmt::format("{:.1f},{:.1f} ", x, y);
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}, {}: {:.2f} us</title></circle>\n", x, y,
          colour, escaped(backend), size_text(bytes), point->p50_us);
    }
    const double y = kTop + 8 + 18 * static_cast<double>(number);
    return fmt::format(
        "<polyline points=\"{0}\" fill=\"none\" stroke=\"{1}\" stroke-width=\"2\"/>\n{2}"
        "<rect x=\"{3}\" y=\"{4}\" width=\"12\" height=\"3\" fill=\"{1}\"/><text x=\"{5}\" y=\"{6}\">{7}</text>\n",
        path, colour, dots, kWidth - kRight + 12, y, kWidth - kRight + 30, y + 5, escaped(backend));
  }

  std::vector<const Measurement*> points_;
  double smallest_ = 1e300;
  double largest_ = 1;
  double low_ = 1e300;  // decades
  double high_ = -1e300;
};

}  // namespace

std::string bench_svg(const BenchReport& report) {
  std::vector<std::vector<const Measurement*>> panels;
  for (const Measurement& one : report.rows) {
    const auto panel = std::find_if(panels.begin(), panels.end(), [&one](const auto& points) {
      return points[0]->ranks == one.ranks && points[0]->operation == one.operation;
    });
    if (panel == panels.end()) {
      panels.push_back({&one});
    } else {
      panel->push_back(&one);
    }
  }
  const size_t columns = panels.size() > 1 ? 2 : 1;
  const size_t rows = std::max<size_t>((panels.size() + columns - 1) / columns, 1);
  const double top = report.title.empty() ? 0 : 30;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text{{font:12px sans-serif;fill:#222}}.title{{font-weight:bold}}.grid{{stroke:#ddd}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth * static_cast<double>(columns), top + kHeight * static_cast<double>(rows));
  if (top > 0) {
    text += fmt::format("<text style=\"font-size:16px\" class=\"title\" x=\"{}\" y=\"24\">{}</text>\n", kLeft,
                        escaped(report.title));
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    text += fmt::format("<g transform=\"translate({},{})\">\n", kWidth * static_cast<double>(i % columns),
                        top + kHeight * static_cast<double>(i / columns));
    text += Panel(panels[i]).svg() + "</g>\n";
  }
  return text + "</svg>\n";
}

}  // namespace backplane::tool
