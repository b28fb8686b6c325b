// SPDX-License-Identifier: Apache-2.0
#include "group/subgroups.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "group/group.hpp"
#include "rendezvous/rendezvous.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kRefuseNs = INT64_C(2) * 1000000000;

// FNV-1a. If two lists collide, the members notice it when they compare their configurations.
uint64_t digest(const std::vector<int32_t>& ranks) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const int32_t rank : ranks) hash = (hash ^ static_cast<uint32_t>(rank)) * UINT64_C(0x100000001b3);
  return hash;
}

}  // namespace

Error renumbered(const Error& error, const std::vector<int32_t>& from, const std::vector<int32_t>& to) {
  const auto rank = static_cast<size_t>(error.peer_rank());
  const auto found =
      error.peer_rank() < 0 || rank >= from.size() ? to.end() : std::find(to.begin(), to.end(), from[rank]);
  const int32_t peer = found == to.end() ? -1 : static_cast<int32_t>(found - to.begin());
  return Error(error.status(), error.what(), peer, error.native_code());
}

void Subgroups::adopt(const std::shared_ptr<Group>& child, bool even_broken) {
  GroupState& state = parent_.state();
  const std::lock_guard lock(mutex_);  // abort_starting and destroy_all lock it after the state has changed
  if (state.destroyed() || (!state.active() && !even_broken)) state.refuse();
  std::erase_if(children_, [](const auto& each) { return each.expired(); });
  children_.push_back(child);
}

void Subgroups::release(const std::shared_ptr<Group>& child) {
  const std::lock_guard lock(mutex_);
  std::erase_if(children_, [&child](const auto& each) { return each.expired() || each.lock() == child; });
}

std::vector<std::shared_ptr<Group>> Subgroups::all() const {
  std::vector<std::shared_ptr<Group>> groups;
  const std::lock_guard lock(mutex_);
  for (const auto& each : children_) {
    if (auto group = each.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

void Subgroups::abort_starting(const Error& cause) {
  for (const auto& child : all()) {
    const bool is_spared = child->config().survives_parent && !parent_.state().destroyed();
    if (child->state().started() || is_spared) continue;
    const bool keeps_ranks = child->config().has_newcomers;
    child->state().abort(keeps_ranks ? cause
                                     : renumbered(cause, parent_.config().global_ranks, child->config().global_ranks));
  }
}

void Subgroups::destroy_all() {
  std::vector<std::weak_ptr<Group>> children;
  {
    const std::lock_guard lock(mutex_);
    children.swap(children_);
  }
  for (const auto& each : children) {
    if (const auto child = each.lock()) child->destroy();
  }
}

std::string Subgroups::problem_of(const std::vector<int32_t>& ranks) const {
  const GroupConfig& config = parent_.config();
  std::set<int32_t> seen;
  for (const int32_t rank : ranks) {
    if (rank < 0 || rank >= config.world_size) {
      return fmt::format("new_group: {} is not a rank of group '{}' of {}", rank, config.name, config.world_size);
    }
    if (!seen.insert(rank).second) return fmt::format("new_group: rank {} is named twice", rank);
  }
  return ranks.empty() ? "new_group: a group has at least one rank" : "";
}

GroupConfig Subgroups::child_config(const std::vector<int32_t>& ranks, const std::string& key) const {
  const GroupConfig& config = parent_.config();
  GroupConfig child = config;
  child.job = parent_.job();
  child.key = fmt::format("{}.{}", config.key, key);
  child.store = keys_of(key);
  child.start_timeout_ns = BP_INHERIT_TIMEOUT;
  child.survives_parent = false;
  child.has_newcomers = false;
  child.base_name.clear();
  child.world_size = static_cast<int32_t>(ranks.size());
  const auto self = std::find(ranks.begin(), ranks.end(), config.rank);
  child.rank = self == ranks.end() ? -1 : static_cast<int32_t>(self - ranks.begin());
  child.global_ranks.clear();
  for (const int32_t rank : ranks) child.global_ranks.push_back(config.global_ranks[static_cast<size_t>(rank)]);
  return child;
}

std::string Subgroups::key_of(uint64_t number, const std::vector<int32_t>& ranks) {
  return fmt::format("{}-{}", number, *std::min_element(ranks.begin(), ranks.end()));
}

// Not among the parent's keys: a group made by shrink outlives the parent.
std::shared_ptr<Store> Subgroups::keys_of(const std::string& key) const {
  return make_prefix_store(parent_.job().keys->store(), fmt::format("group/{}.{}/", parent_.config().key, key));
}

std::string Subgroups::default_name(uint64_t number) const {
  return fmt::format("{}.{}", parent_.config().name, number);
}

void Subgroups::agree(uint64_t number, const GroupRequest& request, Deadline deadline) {
  const GroupConfig& config = parent_.config();
  if (config.world_size == 1) {
    if (!request.problem.empty()) throw Error(BP_INVALID, request.problem);
    return;
  }
  const auto refuse = [this, number](const GroupRequest& other, const std::string& why) {
    // The others wait in the exchange of a split, an operation of the parent, or for the members of the new group.
    if (other.is_split) return parent_.failures().report_mismatch(why);
    decline(*keys_of(key_of(number, other.ranks)), why, Deadline::after(kRefuseNs));
  };
  const auto notes = make_prefix_store(parent_.store(), fmt::format("made/{}/", number));
  try {
    agree_on_group(*notes, {config.name, config.rank, config.world_size}, request, refuse, deadline);
  } catch (const Error& e) {
    if (e.status() != BP_INVALID) parent_.state().throw_cause();  // an abort interrupted the store
    throw;
  }
}

std::shared_ptr<Group> Subgroups::new_group(const std::vector<int32_t>& ranks, const std::string& name,
                                            int64_t timeout_ns, ChooseBackends choose) {
  const auto use = UseGuard::of_active(parent_.state());
  const GroupConfig& config = parent_.config();
  const uint64_t number = made_.fetch_add(1);
  GroupRequest request = {false, name.empty() ? default_name(number) : name, "", ranks, problem_of(ranks)};
  for (const ChosenBackend& backend : config.backends) {
    if (!choose) request.backend += fmt::format("{}{}", request.backend.empty() ? "" : ", ", backend.member->id);
  }
  agree(number, request, Deadline::after(timeout_or(timeout_ns, config.timeout_ns)));
  return make(number, request, timeout_ns, std::move(choose));
}

std::shared_ptr<Group> Subgroups::make(uint64_t number, const GroupRequest& request, int64_t timeout_ns,
                                       ChooseBackends choose) {
  GroupConfig child = child_config(request.ranks, key_of(number, request.ranks));
  child.name = request.name;
  child.timeout_ns = timeout_or(timeout_ns, parent_.config().timeout_ns);
  child.choose = std::move(choose);
  return Group::start(std::move(child), &parent_);
}

// The key consists of what the members know without the other ranks: their list, and the number of groups made from it.
std::shared_ptr<Group> Subgroups::new_group_by_members(const std::vector<int32_t>& ranks, const std::string& name,
                                                       int64_t timeout_ns) {
  const auto use = UseGuard::of_active(parent_.state());
  if (const std::string problem = problem_of(ranks); !problem.empty()) throw Error(BP_INVALID, problem);
  const GroupConfig& config = parent_.config();
  if (std::find(ranks.begin(), ranks.end(), config.rank) == ranks.end()) {
    fail(BP_INVALID, "new_group_by_members: rank {} of group '{}' is not among the ranks; only members call it",
         config.rank, config.name);
  }
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = made_by_members_[ranks]++;
  }
  const std::string own = fmt::format("m{}-{}-{:016x}", number, ranks.size(), digest(ranks));
  GroupConfig child = child_config(ranks, own);
  child.name = name.empty() ? fmt::format("{}.{}", config.name, own) : name;
  child.timeout_ns = timeout_or(timeout_ns, config.timeout_ns);
  return Group::start(std::move(child), &parent_);
}

std::string trace_of_all(Group& group) {
  std::string text(1, '[');
  text += group.trace().json();
  for (const auto& child : group.subgroups().all()) {
    if (!child->member()) continue;
    const std::string more = trace_of_all(*child);
    text.append(",\n").append(more, 1, more.size() - 2);
  }
  text += ']';
  return text;
}

}  // namespace backplane::core
