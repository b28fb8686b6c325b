// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::tool {

// The values of --sizes in bytes: "64K" is one, "4:64M:16" is a range with a factor. Throws Failure(kWrongUse).
std::vector<uint64_t> parse_sizes(const std::vector<std::string>& texts);

}  // namespace backplane::tool
