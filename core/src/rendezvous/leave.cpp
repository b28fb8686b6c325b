// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>

#include "rendezvous/rendezvous.hpp"
#include "rendezvous/round.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kLongestNs = 5'000'000'000;  // a rank that died leaves nobody waiting longer

}  // namespace

void leave(Rendezvous& meeting, Deadline deadline) noexcept {
  try {
    const int64_t left_ns = deadline.infinite() ? kLongestNs : std::min(deadline.left_ns(), kLongestNs);
    const Deadline limit = Deadline::after(left_ns);
    // The round first: when the last rank has departed, the store may be gone the next moment.
    if (meeting.root != nullptr) meeting.root->add(left_key(meeting.rank), 1, limit);
    if (meeting.store->add(kDepartedKey, 1, limit) == meeting.world_size) {
      meeting.store->set(kAllDepartedKey, "", limit);
    } else if (meeting.server != nullptr) {
      meeting.store->wait({kAllDepartedKey}, limit);
    }
  } catch (const std::exception&) {
    // The store or a rank is gone already, or was interrupted: nothing is left to wait for.
  }
}

}  // namespace backplane::core
