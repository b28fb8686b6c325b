// SPDX-License-Identifier: Apache-2.0
//
// What becomes of a group when one of its members is lost: it breaks, and all that fails because of it fails with the
// same sentence on every survivor, whatever the backend saw of it.
#include "group/group.hpp"
#include "group/pass.hpp"

namespace backplane::core {

void Group::on_loss(const Loss& loss) {
  if (concerns(loss, config_.global_ranks)) abort(loss_error(loss, config_.global_ranks));
}

Error Group::explained(const Error& error) const {
  const int32_t status = error.status();
  const bool doubtful = status == BP_PEER_LOST || status == BP_INTERNAL || status == BP_RESOURCE;
  if (!liveness_ || (!doubtful && status != BP_TIMEOUT)) return error;
  const bool waits = doubtful && state_.load() == State::kActive;
  const int32_t peer = error.peer_rank();
  const bool named = peer >= 0 && peer < config_.world_size;
  const auto loss =
      liveness_->await_loss(config_.global_ranks, named ? config_.global_ranks[static_cast<size_t>(peer)] : -1,
                            Deadline::after(waits ? base::grace::kDeath : 0));
  return loss ? loss_error(*loss, config_.global_ranks) : error;
}

bool Group::caused_by_loss(const Error& cause) const {
  if (!liveness_ || cause.status() != BP_PEER_LOST) return false;
  const auto loss = liveness_->loss_among(config_.global_ranks);
  return loss && loss->text == cause.what();
}

}  // namespace backplane::core
