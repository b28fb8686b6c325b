// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "backplane/sdk/sdk.hpp"

namespace backplane::chaos {

inline constexpr std::array kOptions = {
    sdk::option(
        {.key = "rules", .help = "conditions: action; ... as in rank 1 send after 10: drop; chance 0.01: delay 5ms"}),
    sdk::option({.key = "file", .help = "file with the rules, one per line"}),
    sdk::option({.type = BP_OPTION_INT,
                 .key = "seed",
                 .default_value = "0",
                 .help = "seed of the random choices: the same seed gives the same faults",
                 .min = 0,
                 .max = 9e18}),
};

}  // namespace backplane::chaos
