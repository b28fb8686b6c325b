// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace backplane::core {

// The candidate nearest to `word` by Damerau-Levenshtein distance (optimal string alignment). Empty if more than a
// third of the letters differ.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// " Did you mean 'gloo'?" or empty.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace backplane::core
