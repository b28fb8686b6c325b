// SPDX-License-Identifier: Apache-2.0
//
// One rank of `backplane bench`, or all of them: what the command starts itself as.
#pragma once

#include <string>
#include <vector>

#include "measure/task.hpp"

namespace backplane::tool {

constexpr const char* kBenchRankCommand = "__bench";

// Measures groups of these backends, side by side. Throws backplane::Error and what bench::measure throws.
// threads 0: this process is the rank that its environment names (rank_environment.hpp); else it is that many ranks, a
// thread each.
void measure_backends(const bench::Task& task, const std::vector<std::string>& backends, int threads);

}  // namespace backplane::tool
