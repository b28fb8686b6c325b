// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>

#include "rendezvous/rendezvous.hpp"
#include "rendezvous/round.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kPollNs = 100'000'000;  // how often lost ranks are counted

// For the rank that hosts the store: waits until each rank has left the round or is lost. A rank withdraws its
// membership before it leaves, so only one that was reported lost by mistake counts twice.
void await_others(const Rendezvous& meeting, Deadline deadline) {
  const auto membership = meeting.store->enroll(
      {"", -1, ""}, [](const Loss&) {}, deadline);
  for (;;) {
    const Absences absences = membership->absences(deadline);
    const auto lost = std::count_if(absences.begin(), absences.end(),
                                    [](const auto& absence) { return absence.second == Absence::kLost; });
    if (meeting.store->add(kDepartedKey, 0, deadline) + lost >= meeting.world_size) return;
    try {
      return meeting.store->wait({kAllDepartedKey}, std::min(deadline, Deadline::after(kPollNs)));
    } catch (const Error& e) {
      if (e.status() != BP_TIMEOUT || deadline.passed()) throw;
    }
  }
}

}  // namespace

void leave(Rendezvous& meeting, Deadline deadline, const std::string& failure) noexcept {
  try {
    if (!failure.empty()) meeting.store->compare_set(kFailureKey, "", failure, deadline);
    // Count the round first: the store may end as soon as the last rank has left.
    if (meeting.root != nullptr) meeting.root->add(left_key(meeting.rank), 1, deadline);
    if (meeting.store->add(kDepartedKey, 1, deadline) == meeting.world_size) {
      // The keys of a failed start stay for ranks that come late.
      if (meeting.outlives_job && failure.empty()) return meeting.store->remove_prefix("", deadline);
      meeting.store->set(kAllDepartedKey, "", deadline);
    } else if (meeting.server != nullptr) {
      await_others(meeting, deadline);
    }
  } catch (const std::exception&) {
    // The store is lost or was interrupted, or a rank does not leave in time.
  }
}

void report_end(Store& root, int32_t rank, const std::string& identity, const std::string& reason, Deadline deadline) {
  const int64_t round = root.add(left_key(rank), 0, deadline);
  root.report_end({round_prefix(round), rank, identity}, reason, deadline);
}

}  // namespace backplane::core
