// SPDX-License-Identifier: Apache-2.0
#include "options/nearest.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace backplane::core {
namespace {

size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 64;  // longer words are no misspelt names
  if (word.size() > kLongest) return {};
  std::string best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t limit = std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    const size_t far = distance(word, candidate);
    if (far > limit || (!best.empty() && far >= best_distance)) continue;
    best = candidate;
    best_distance = far;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? std::string() : fmt::format(" Did you mean '{}'?", near);
}

}  // namespace backplane::core
