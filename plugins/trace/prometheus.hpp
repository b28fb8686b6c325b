// SPDX-License-Identifier: Apache-2.0
//
// Statistics in the Prometheus text format (exposition format 0.0.4), for the textfile collector of the node exporter.
#pragma once

#include <cstdint>
#include <string>

#include "functions.hpp"
#include "statistics.hpp"
#include "worker.hpp"

namespace backplane::trace {

// Omits operations that never occurred. `rank` is the rank in the job.
std::string prometheus_text(const Statistics& statistics, const Functions& functions, const WorkerMetrics& worker,
                            const std::string& group, int32_t rank);

}  // namespace backplane::trace
