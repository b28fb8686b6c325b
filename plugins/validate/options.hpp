// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "backplane/sdk/sdk.hpp"

namespace backplane::validate {

inline constexpr const char* kPolicies = "error|warn|off";

inline constexpr std::array kOptions = {
    sdk::option({.type = BP_OPTION_ENUM,
                 .key = "input",
                 .default_value = "error",
                 .help = "an input that changes while in use: the operation fails, or a line in the log",
                 .choices = kPolicies}),
    sdk::option({.type = BP_OPTION_ENUM,
                 .key = "busy",
                 .default_value = "error",
                 .help = "a buffer that an operation in flight still uses",
                 .choices = kPolicies}),
    sdk::option({.type = BP_OPTION_ENUM,
                 .key = "nan",
                 .default_value = "warn",
                 .help = "NaN or infinity in a floating-point output",
                 .choices = kPolicies}),
};

}  // namespace backplane::validate
