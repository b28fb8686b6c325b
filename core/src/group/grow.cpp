// SPDX-License-Identifier: Apache-2.0
//
// Grow: a new group of all members and of newcomers. Rank 0 decides whom to take and tells the others through the keys
// of the old group. The new group meets in the store of the newcomers and shares nothing with the old one.
#include <algorithm>
#include <numeric>
#include <utility>

#include "group/flag_guard.hpp"
#include "group/group.hpp"
#include "group/newcomers.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr const char* kDecision = "decision";
constexpr const char* kReadCount = "read";

void check_backends(const GroupConfig& config) {
  for (const ChosenBackend& backend : config.backends) {
    if ((backend.member->backend->flags & BP_BACKEND_ONE_WORLD) == 0) continue;
    fail(BP_UNSUPPORTED,
         "grow of group '{}': backend {} connects only ranks that were launched together; use another backend, or "
         "restart the job",
         config.name, backend.member->id);
  }
}

GroupConfig grown_config(const GroupConfig& parent, const Attempt& attempt, Deadline deadline) {
  GroupConfig config = parent;
  config.name = attempt.text;
  config.base_name = base_name(parent);
  config.backends = parent.requested;
  config.requested.clear();
  config.world_size = parent.world_size + static_cast<int32_t>(attempt.newcomers.size());
  config.global_ranks.resize(static_cast<size_t>(config.world_size));
  std::iota(config.global_ranks.begin(), config.global_ranks.end(), 0);
  config.key = kFirstGroup;
  config.start_timeout_ns = deadline.infinite() ? BP_NO_TIMEOUT : std::max<int64_t>(deadline.left_ns(), 1);
  config.survives_parent = false;
  config.has_newcomers = true;
  return config;
}

}  // namespace

std::shared_ptr<Group> Subgroups::grow(const std::shared_ptr<Store>& store, int64_t timeout_ns) {
  const auto use = UseGuard::of_active(parent_.state());
  const GroupConfig& config = parent_.config();
  const FlagGuard flag(growing_);
  if (!flag.is_owner()) fail(BP_INVALID, "group '{}' is already being grown by another thread", config.name);
  check_backends(config);
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, config.timeout_ns));
  Newcomers newcomers(store);
  const Attempt attempt = agree_on_attempt(newcomers, deadline);
  if (attempt.number < 0) fail(BP_AGAIN, "grow of group '{}': {}", config.name, attempt.text);
  return start_grown(newcomers, attempt, deadline);
}

// Rank 0 sets the decision for the others. The last one to read it removes it.
Attempt Subgroups::agree_on_attempt(Newcomers& newcomers, Deadline deadline) {
  const GroupConfig& config = parent_.config();
  if (config.world_size == 1) return newcomers.take(config, deadline);
  const auto round = make_prefix_store(parent_.store(), fmt::format("grow{}/", grows_.fetch_add(1)));
  const Allowance allowance(deadline);
  Attempt attempt;
  try {
    if (config.rank == 0) {
      try {
        attempt = newcomers.take(config, deadline);
      } catch (const Error& e) {
        round->set(kDecision, encode({-1, {}, fmt::format("rank 0 cannot take newcomers: {}", e.what())}), deadline);
        throw;
      }
      round->set(kDecision, encode(attempt), deadline);
    } else {
      attempt = decode_attempt(round->get(kDecision, deadline));
    }
    if (round->add(kReadCount, 1, deadline) == config.world_size) {
      round->remove(kDecision, deadline);
      round->remove(kReadCount, deadline);
    }
  } catch (const Error& e) {
    parent_.state().throw_cause();  // an abort interrupted the store
    if (e.status() != BP_TIMEOUT || config.rank == 0) throw;
    fail(BP_TIMEOUT, "grow of group '{}': rank 0 did not call it within {}; let all members call it equally often",
         config.name, allowance.text());
  }
  return attempt;
}

std::shared_ptr<Group> Subgroups::start_grown(Newcomers& newcomers, const Attempt& attempt, Deadline deadline) {
  const GroupConfig& parent = parent_.config();
  const std::shared_ptr<Store> keys = newcomers.group_keys(attempt.number);
  const AttemptWatch watch(newcomers.enroll(-1, deadline), attempt, keys);
  GroupConfig config = grown_config(parent, attempt, deadline);
  config.store = keys;
  config.job.owner = parent_.job().owner;  // may serve the store
  try {
    return detach(Group::start(std::move(config), &parent_));
  } catch (const Error& e) {
    const std::string reason = call_off(*keys, fmt::format("rank {} cannot start: {}", parent.rank, e.what()));
    parent_.state().throw_cause();
    if (parent_.state().destroyed()) parent_.state().refuse();
    const std::string loss = watch.loss();
    const bool lost_newcomer = e.status() == BP_PEER_LOST && e.peer_rank() >= parent.world_size;
    const bool was_called_off = !reason.empty() && e.status() == BP_INVALID;
    if (loss.empty() && !lost_newcomer && !was_called_off) {
      if (reason.empty() || e.status() != BP_TIMEOUT) throw;
      fail(BP_TIMEOUT, "grow of group '{}': {}", parent.name, reason);  // the same on all members
    }
    fail(BP_AGAIN, "grow of group '{}': {}; call it again", parent.name,
         !loss.empty()     ? loss
         : !reason.empty() ? reason
                           : e.what());
  }
}

}  // namespace backplane::core
