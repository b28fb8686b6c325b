// SPDX-License-Identifier: Apache-2.0
//
// Events in Chrome's trace format (JSON object format), which Perfetto reads: https://ui.perfetto.dev.
#pragma once

#include <cstdint>
#include <string>

#include "events.hpp"
#include "functions.hpp"
#include "worker.hpp"

namespace backplane::trace {

// Returns one complete event ("ph":"X") per operation, with pid = `rank`, the rank in the job. Overlapping operations
// get different tracks (tid). Times are microseconds since 1970: begin_ns + `realtime_offset_ns`. The event arrays of
// several ranks can be concatenated. The worker's metrics go into "otherData".
std::string chrome_trace(const Events& events, const Functions& functions, const WorkerMetrics& worker,
                         const std::string& group, int32_t rank, int64_t realtime_offset_ns);

}  // namespace backplane::trace
