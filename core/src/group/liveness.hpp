// SPDX-License-Identifier: Apache-2.0
//
// What this rank knows of the others' lives: it enrolls itself in its job's store, is told there who is lost, and
// tells the groups, each of which is ended by the loss of one of its members. One per job (the first group and all that
// are made from it), or per group in a store that the program made.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"
#include "store/store.hpp"

namespace backplane::core {

class Liveness {
 public:
  // Who wants to hear of losses.
  class Listener {
   public:
    virtual ~Listener() = default;
    // On a thread of the store, or on that which calls `add`. Must not block, nor add or remove listeners.
    virtual void on_loss(const Loss& loss) = 0;
  };

  // Enrolls `rank` under the keys of `store`. May block until the deadline. Throws core::Error.
  static std::shared_ptr<Liveness> enroll(Store& store, int32_t rank, Deadline deadline);
  // Withdraws, at most for a second. Not from within on_loss.
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // The listener hears of all losses, also of those so far.
  void add(Listener* listener);
  // Waits for a call of it that is in progress. Twice is fine.
  void remove(Listener* listener);

  // Whether losses are detected at all.
  bool watches() const { return membership_->watches(); }
  // The first loss that ends a group of these ranks of the job.
  std::optional<Loss> loss_among(const std::vector<int32_t>& ranks) const;
  // Like loss_among, but waits for a loss. Returns early if `suspect` (-1: none) has left in an orderly way.
  std::optional<Loss> await_loss(const std::vector<int32_t>& ranks, int32_t suspect, Deadline deadline);
  bool anybody_lost() const;
  // All who are lost or have departed by now.
  Absences absences(Deadline deadline) { return membership_->absences(deadline); }

 private:
  Liveness() = default;
  void hear(const Loss& loss);

  mutable std::mutex mutex_;
  std::condition_variable heard_;
  std::vector<Loss> losses_;  // guarded by mutex_; in the order in which they were told

  std::mutex listeners_mutex_;  // held while they are called, and taken before mutex_
  std::set<Listener*> listeners_;

  std::unique_ptr<Membership> membership_;  // destroyed first
};

// Does this loss end a group of these ranks?
bool concerns(const Loss& loss, const std::vector<int32_t>& ranks);
// What a group of these ranks of the job reports: BP_PEER_LOST, the sentence, and the lost rank's number in the group.
Error loss_error(const Loss& loss, const std::vector<int32_t>& ranks);
// Is the error the report of a loss that `liveness` knows of?
bool is_known_loss(const Error& error, const Liveness& liveness, const std::vector<int32_t>& ranks);

}  // namespace backplane::core
