// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a group share a host.
#pragma once

#include <cstdint>
#include <vector>

#include "deadline.hpp"
#include "store/store.hpp"

namespace backplane::core {

// The number of each rank's host, by the order of the hosts' first ranks; the same on all ranks. All members call it,
// over the same keys, with the name of their host. Store calls per rank: three; one more for each rank for the last.
std::vector<int32_t> host_numbers(Store& store, int32_t rank, int32_t world_size, const std::string& host,
                                  Deadline deadline);

}  // namespace backplane::core
