// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group.hpp"

namespace backplane::core {

// Held while a thread uses the agents of a group: destroy waits for it.
class Group::Presence {
 public:
  explicit Presence(Group& group) : group_(group) { group_.inside_.fetch_add(1); }
  ~Presence() {
    group_.inside_.fetch_sub(1);
    if (group_.state_.load() != State::kActive) group_.inside_.notify_all();
  }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  Group& group_;
};

// A presence in a group that is active; throws why it is not.
class Group::Pass {
 public:
  explicit Pass(Group& group) : presence_(group) {
    if (group.state_.load() != State::kActive || !group.member()) group.refuse();
  }

 private:
  const Presence presence_;
};

}  // namespace backplane::core
