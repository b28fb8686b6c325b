// SPDX-License-Identifier: Apache-2.0
//
// Byte strings of any length between the ranks of a group: sizes first, then the bytes, as v-variants.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "group/group.hpp"

namespace backplane::core {

// See bp_group_exchange_objects.
std::vector<std::string> exchange_objects(Group& group, uint32_t kind, int32_t root,
                                          const std::vector<std::string_view>& in, int64_t timeout_ns);

}  // namespace backplane::core
