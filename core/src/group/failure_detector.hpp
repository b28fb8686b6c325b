// SPDX-License-Identifier: Apache-2.0
//
// Failure detector: enrolls this rank in its job's store, receives the losses of other ranks from there, and notifies
// listeners, such as the groups that lost a member. One per job (the first group and all groups made from it), or per
// group in a store that the program created.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backplane/base/executor.hpp"
#include "deadline.hpp"
#include "error.hpp"
#include "store/store.hpp"

namespace backplane::core {

class FailureDetector {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // Called on a thread of the detector, or on the thread that calls `add`. May block as long as an abort does: the
    // store's thread sends the heartbeats meanwhile. Must not add or remove listeners.
    virtual void on_loss(const Loss& loss) = 0;
  };

  // Enrolls `rank` under the keys of `store`. May block until the deadline. Throws core::Error.
  static std::shared_ptr<FailureDetector> enroll(Store& store, int32_t rank, Deadline deadline);
  // Withdraws the rank. Blocks for at most a second. Must not be called in on_loss.
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  // Notifies the listener of all losses, including earlier ones.
  void add(Listener* listener);
  // Waits for a running call of the listener. Ignores a listener that was removed before.
  void remove(Listener* listener);

  // Whether the store detects losses.
  bool watches() const { return membership_->watches(); }
  // The first loss that breaks a group of these ranks of the job.
  std::optional<Loss> loss_among(const std::vector<int32_t>& ranks) const;
  // Whether `rank` (-1: none) has left in an orderly way. Blocks for at most 0.1 s; false if the store does not reply.
  bool has_left(int32_t rank, Deadline deadline);
  // The lost ranks among these ranks of the job, as indices into `ranks`.
  std::vector<int32_t> lost_among(const std::vector<int32_t>& ranks) const;
  // Whether the error reports a loss that breaks a group of these ranks.
  bool is_known_loss(const Error& error, const std::vector<int32_t>& ranks) const;
  // All ranks that are lost or have left.
  Absences absences(Deadline deadline) { return membership_->absences(deadline); }

 private:
  FailureDetector() = default;
  void report(const Loss& loss);
  void notify(const Loss& loss);

  mutable std::mutex mutex_;
  std::vector<Loss> losses_;  // guarded by mutex_; in the order of the reports

  std::mutex listeners_mutex_;  // held while listeners are called; taken before mutex_
  std::set<Listener*> listeners_;

  std::unique_ptr<Membership> membership_;  // destroyed first
  base::Executor notifier_{1};              // its thread starts with the first loss
};

// Whether this loss breaks a group of these ranks.
bool concerns(const Loss& loss, const std::vector<int32_t>& ranks);
// The error of a group of these ranks of the job: BP_PEER_LOST, the text of the loss, and the lost rank's number in the
// group.
Error loss_error(const Loss& loss, const std::vector<int32_t>& ranks);

}  // namespace backplane::core
