// SPDX-License-Identifier: Apache-2.0
//
// Compares what the ranks of a group ask for when they make groups from it. Each call of new_group and split has a
// number, the same on all ranks. The first rank of a call notes its request in the store; each later one compares its
// own. Ranks may ask for different groups in one call if these have no member in common. A rank whose list is invalid
// notes it as well: the others do not wait for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deadline.hpp"
#include "store/store.hpp"

namespace backplane::core {

// The group that a rank asks for.
struct GroupRequest {
  bool is_split = false;  // its members are known only later; the other fields are empty
  std::string name;
  std::string backend;         // "": one of its own
  std::vector<int32_t> ranks;  // of the parent
  std::string problem = {};    // why the list is invalid; "": it is not

  bool operator==(const GroupRequest&) const = default;
};

// The parent group, as one of its ranks sees it.
struct ParentView {
  const std::string& name;
  int32_t rank = 0;
  int32_t world_size = 1;
};

// Throws BP_INVALID if `mine` is invalid, or if another rank asks for a group that contradicts it: the ranks that wait
// for a member of theirs get no further. Calls `refuse` before, with each request whose ranks must fail likewise, and
// the sentence. A few store calls; the last rank makes one more for each different request beyond the first
// eight.
// `notes`: the keys of this call, which the last rank removes.
using Refuse = std::function<void(const GroupRequest& request, const std::string& why)>;
void agree_on_group(Store& notes, const ParentView& parent, const GroupRequest& mine, const Refuse& refuse,
                    Deadline deadline);

}  // namespace backplane::core
