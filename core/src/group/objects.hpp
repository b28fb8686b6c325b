// SPDX-License-Identifier: Apache-2.0
//
// Exchange of byte strings of any length between ranks: first the sizes, then the bytes, by v-variants or by two
// messages.
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

// See bp_group_send_object.
void send_object(Group& group, std::string_view object, int32_t peer, uint32_t tag, int64_t timeout_ns);
struct ReceivedObject {
  std::string bytes;
  int32_t source = -1;
};
ReceivedObject receive_object(Group& group, int32_t peer, uint32_t tag, int64_t timeout_ns);

}  // namespace backplane::core
