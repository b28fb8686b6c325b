// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>

#include "rendezvous/rendezvous.hpp"
#include "rendezvous/round.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kMaxWaitNs = 5'000'000'000;  // the longest wait for a rank that died

}  // namespace

void leave(Rendezvous& meeting, Deadline deadline, const std::string& failure) noexcept {
  try {
    const int64_t left_ns = deadline.infinite() ? kMaxWaitNs : std::min(deadline.left_ns(), kMaxWaitNs);
    const Deadline limit = Deadline::after(left_ns);
    if (!failure.empty()) meeting.store->compare_set(kFailureKey, "", failure, limit);
    // Count the round first: the store may end as soon as the last rank has left.
    if (meeting.root != nullptr) meeting.root->add(left_key(meeting.rank), 1, limit);
    if (meeting.store->add(kDepartedKey, 1, limit) == meeting.world_size) {
      // The keys of a failed start stay for ranks that come late.
      if (meeting.outlives_job && failure.empty()) return meeting.store->remove_prefix("", limit);
      meeting.store->set(kAllDepartedKey, "", limit);
    } else if (meeting.server != nullptr) {
      meeting.store->wait({kAllDepartedKey}, limit);
    }
  } catch (const std::exception&) {
    // The store or a rank is lost, or the store was interrupted.
  }
}

void report_end(Store& root, int32_t rank, const std::string& identity, const std::string& reason, Deadline deadline) {
  const int64_t round = root.add(left_key(rank), 0, deadline);
  root.report_end({round_prefix(round), rank, identity}, reason, deadline);
}

}  // namespace backplane::core
