// SPDX-License-Identifier: Apache-2.0
//
// The groups of this process that have not been destroyed. At exit they are ended as destroy ends them, all within
// base::grace::kExit, so that the peers get the messages that were sent.
#pragma once

#include <memory>

namespace backplane::core {

class Group;

void add_live_group(const std::shared_ptr<Group>& group);
// Ignores groups that were not added.
void remove_live_group(const Group* group);

}  // namespace backplane::core
