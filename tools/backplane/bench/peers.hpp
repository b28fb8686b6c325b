// SPDX-License-Identifier: Apache-2.0
//
// Other libraries that `backplane bench --peer` measures beside Backplane's backends, by the drivers of
// tools/bench/peers.
#pragma once

#include <string>
#include <vector>

#include "bench/job.hpp"

namespace backplane::tool {

std::vector<std::string> peer_names();

// The peer that was written as NAME or NAME?VARIABLE=VALUE&..., which sets variables of its environment. Throws Failure
// with kWrongUse if there is no such name, with kNotFound and the reason if it is not installed here.
Contestant find_peer(const std::string& written, int ranks);

}  // namespace backplane::tool
