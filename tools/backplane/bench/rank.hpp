// SPDX-License-Identifier: Apache-2.0
//
// One rank of `backplane bench`, or all of them as threads. The command starts itself as these.
#pragma once

#include <string>
#include <vector>

#include "measure/task.hpp"

namespace backplane::tool {

constexpr const char* kBenchRankCommand = "__bench";

// Measures one group per backend, side by side. Throws backplane::Error and what bench::measure throws.
// threads: 0 if this process is the rank that its environment names (rank_environment.hpp); else the number of ranks,
// each a thread of this process.
void measure_backends(const bench::Task& task, const std::vector<std::string>& backends, int threads);

}  // namespace backplane::tool
