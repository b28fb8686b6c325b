// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace backplane::core {

// The candidate most like `word` (Damerau-Levenshtein distance, optimal string alignment), empty if none is near enough
// to be what was meant: at most a third of its letters differ.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// " Did you mean 'gloo'?" or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace backplane::core
