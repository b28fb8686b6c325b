// SPDX-License-Identifier: Apache-2.0
#include "group/subgroups.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "group/group.hpp"

namespace backplane::core {
namespace {

// FNV-1a. Groups whose lists collide are told apart when their members compare choices.
uint64_t digest(const std::vector<int32_t>& ranks) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const int32_t rank : ranks) hash = (hash ^ static_cast<uint32_t>(rank)) * UINT64_C(0x100000001b3);
  return hash;
}

}  // namespace

void Subgroups::adopt(const std::shared_ptr<Group>& child, bool even_broken) {
  GroupState& state = parent_.state();
  const std::lock_guard lock(mutex_);  // abort_starting and destroy_all take it after the state has changed
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
    if (!child->state().started() && !is_spared) child->abort(cause);
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

void Subgroups::check_ranks(const std::vector<int32_t>& ranks) const {
  const GroupConfig& config = parent_.config();
  std::set<int32_t> seen;
  for (const int32_t rank : ranks) {
    if (rank < 0 || rank >= config.world_size) {
      fail(BP_INVALID, "new_group: {} is not a rank of group '{}' of {}", rank, config.name, config.world_size);
    }
    if (!seen.insert(rank).second) fail(BP_INVALID, "new_group: rank {} is named twice", rank);
  }
  if (ranks.empty()) fail(BP_INVALID, "new_group: a group has at least one rank");
}

GroupConfig Subgroups::child_config(const std::vector<int32_t>& ranks) const {
  const GroupConfig& config = parent_.config();
  GroupConfig child = config;
  child.job = parent_.job();
  child.start_timeout_ns = BP_INHERIT_TIMEOUT;
  child.survives_parent = false;
  child.world_size = static_cast<int32_t>(ranks.size());
  const auto self = std::find(ranks.begin(), ranks.end(), config.rank);
  child.rank = self == ranks.end() ? -1 : static_cast<int32_t>(self - ranks.begin());
  child.global_ranks.clear();
  for (const int32_t rank : ranks) child.global_ranks.push_back(config.global_ranks[static_cast<size_t>(rank)]);
  return child;
}

std::shared_ptr<Group> Subgroups::new_group(const std::vector<int32_t>& ranks, const std::string& name,
                                            int64_t timeout_ns, ChooseBackends choose) {
  const OperationGuard guard(parent_.state());
  check_ranks(ranks);
  const GroupConfig& config = parent_.config();
  const uint64_t number = made_.fetch_add(1);
  GroupConfig child = child_config(ranks);
  child.name = name.empty() ? fmt::format("{}.{}", config.name, number) : name;
  child.timeout_ns = timeout_or(timeout_ns, config.timeout_ns);
  child.choose = std::move(choose);
  // Groups made by one call to split share a number; their lowest member tells them apart.
  const int32_t lowest = *std::min_element(ranks.begin(), ranks.end());
  child.key = fmt::format("{}.{}-{}", config.key, number, lowest);
  child.store = make_prefix_store(config.store, fmt::format("child{}-{}/", number, lowest));
  return Group::start(std::move(child), &parent_);
}

// Members have in common, without the other ranks: their list, and how many groups of it they have made.
std::shared_ptr<Group> Subgroups::new_group_by_members(const std::vector<int32_t>& ranks, const std::string& name,
                                                       int64_t timeout_ns) {
  const OperationGuard guard(parent_.state());
  check_ranks(ranks);
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
  GroupConfig child = child_config(ranks);
  child.name = name.empty() ? fmt::format("{}.{}", config.name, own) : name;
  child.timeout_ns = timeout_or(timeout_ns, config.timeout_ns);
  child.key = fmt::format("{}.{}", config.key, own);
  child.store = make_prefix_store(config.store, fmt::format("child-{}/", own));
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
