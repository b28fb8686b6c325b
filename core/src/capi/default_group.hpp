// SPDX-License-Identifier: Apache-2.0
//
// The default group of the process.
#pragma once

#include <memory>

#include "backplane/backplane.h"
#include "group/group.hpp"

namespace backplane::core {

// Creates a group as the default. BP_INVALID if there is one. With a backend with BP_BACKEND_LOCAL the group does not
// become the default; BP_INVALID unless `wants_handle`.
std::shared_ptr<Group> init_default(const bp_group_config& config, bool wants_handle);
std::shared_ptr<Group> default_group();  // NULL if there is none
// Throws BP_INVALID because there is none: with `why`, or in a child made by fork that its parent has one.
[[noreturn]] void refuse_default(const char* why);
void destroy_default();
// Destroys a group. If it is the default, there is no default afterwards.
void end_group(const std::shared_ptr<Group>& group);

}  // namespace backplane::core
