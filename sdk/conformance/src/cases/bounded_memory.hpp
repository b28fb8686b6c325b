// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "../proc.hpp"
#include "case.hpp"

namespace backplane::conformance {

// Call on every rank, when all have done the work. `before`: resident_bytes() before it. The work may have cost `most`
// bytes of resident memory for each rank. `work`: "100 messages".
inline void check_growth(Rank& rank, uint64_t before, uint64_t most, const std::string& work) {
  rank.barrier();
  const uint64_t after = resident_bytes();
  const uint64_t ranks = rank.has_flag(BP_BACKEND_ONE_PROCESS) ? static_cast<uint64_t>(rank.size()) : 1;
  rank.check(has_sanitizer() || before == 0 || after < before + ranks * most,
             fmt::format("resident memory grows by less than {} KiB in {}", ranks * most >> 10, work),
             fmt::format("it grew by {} KiB", (after - std::min(before, after)) >> 10));
}

}  // namespace backplane::conformance
