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

// `written` is NAME or NAME?VARIABLE=VALUE&..., which sets environment variables. NAME is one of peer_names(), or the
// path of a program with a slash in it, which is started once, with the number of ranks before the driver's arguments.
// Throws Failure: kWrongUse for an unknown name, kNotFound with the reason if the peer is not installed.
BenchJob find_peer(const std::string& written, int ranks);

}  // namespace backplane::tool
