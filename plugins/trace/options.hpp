// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "backplane/sdk/sdk.hpp"

namespace backplane::trace {

inline constexpr std::array kOptions = {
    sdk::option({.key = "file", .help = "metrics as a Prometheus text file; %r in the path is the rank, %g the group"}),
    sdk::option({.type = BP_OPTION_DURATION,
                 .key = "interval",
                 .default_value = "15s",
                 .help = "time between writes of file; 0: only at the end",
                 .min = 0,
                 .max = 86400e9}),
    sdk::option({.key = "chrome", .help = "a trace for Perfetto, written at the end; %r and %g as above"}),
    sdk::option({.type = BP_OPTION_INT,
                 .key = "events",
                 .default_value = "100000",
                 .help = "operations kept for chrome, 56 bytes each; the oldest are dropped",
                 .min = 1,
                 .max = 10000000}),
};

}  // namespace backplane::trace
