// SPDX-License-Identifier: Apache-2.0
//
// How groups come to be: the first of a job, and those made from others.
#include <algorithm>
#include <numeric>
#include <set>

#include "group/group.hpp"
#include "group/pass.hpp"
#include "store/rendezvous.hpp"

namespace backplane::core {
namespace {

// What all members must have in common.
std::string fingerprint(const GroupConfig& config) {
  std::string text;
  for (const ChosenBackend& backend : config.backends) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ",
                        backend.memory ? (*backend.memory == BP_HOST ? "cpu:" : "cuda:") : "",
                        backend.options->fingerprint());
  }
  std::string ranks;
  for (const int32_t rank : config.global_ranks) ranks += fmt::format(" {}", rank);
  return fmt::format("backend {} for ranks{}", text, ranks);
}

// All members learn the same about one step of starting: "" if it went well on every one of them, else the sentence of
// the first that it went wrong on. Costs each member three store calls.
std::string verdict(const GroupConfig& config, const std::string& step, const std::string& problem, Deadline deadline) {
  Store& store = *config.store;
  const std::string key = step + "/verdict";
  if (!problem.empty()) return store.compare_set(key, "", problem, deadline);
  if (store.add(step + "/done", 1, deadline) == config.world_size) store.compare_set(key, "", "ok", deadline);
  const std::string told = store.get(key, deadline);
  return told == "ok" ? "" : told;
}

// The first member to come writes down its choice, the others compare.
void agree(const GroupConfig& config, Deadline deadline) {
  const std::string mine = fingerprint(config);
  const std::string first = config.store->compare_set("choice", "", fmt::format("{}\n{}", config.rank, mine), deadline);
  const size_t line = first.find('\n');
  std::string problem;
  if (line != std::string::npos && first.substr(line + 1) != mine) {
    problem = fmt::format("the ranks of group '{}' disagree: rank {} chose {}, rank {} chose {}", config.name,
                          first.substr(0, line), first.substr(line + 1), config.rank, mine);
  }
  const std::string told = verdict(config, "choice", problem, deadline);
  if (!told.empty()) throw Error(BP_INVALID, told);
}

}  // namespace

std::shared_ptr<Group> Group::start(GroupConfig config) {
  std::shared_ptr<void> job = std::move(config.job);
  std::shared_ptr<Reporter> reporter = std::move(config.reporter);
  std::shared_ptr<Group> group(new Group(std::move(config), std::move(job), std::move(reporter)));
  if (!group->member()) return group;
  group->start_agents();
  group->take_seat();
  return group;
}

void Group::start_agents() {
  const Deadline deadline = Deadline::after(config_.timeout_ns);
  join(*config_.store, config_.rank, config_.world_size, process_identity(), deadline);
  agree(config_, deadline);
  try {
    for (const ChosenBackend& backend : config_.backends) start_agent(backend, deadline);
  } catch (const std::exception& e) {
    try {
      verdict(config_, "start", e.what(), deadline);
    } catch (const Error&) {  // a store that is lost tells the others itself
    }
    throw;
  }
  // A rank on which a backend did not start would leave the others waiting for it.
  const std::string told = verdict(config_, "start", "", deadline);
  if (!told.empty()) fail(BP_PEER_LOST, "group '{}' cannot start: {}", config_.name, told);
}

void Group::start_agent(const ChosenBackend& backend, Deadline deadline) {
  AgentConfig agent;
  agent.name = config_.name;
  agent.rank = config_.rank;
  agent.world_size = config_.world_size;
  agent.device = config_.device;
  agent.global_ranks = config_.global_ranks;
  agent.store = make_prefix_store(config_.store, fmt::format("agent{}/", agents_.size()));
  agent.timeout_ns = deadline.left_ns();
  agents_.push_back(std::make_unique<Agent>(Chosen{backend.member, backend.options}, config_.layers, agent));
  for (uint32_t memory = 0; memory < BP_MEMORY_COUNT; ++memory) {
    const bool named = backend.memory == memory;
    if (named || (!backend.memory && by_memory_[memory] == nullptr)) by_memory_[memory] = agents_.back().get();
  }
}

std::shared_ptr<Group> Group::new_group(const std::vector<int32_t>& ranks, const std::string& name,
                                        int64_t timeout_ns) {
  const Pass pass(*this);
  std::set<int32_t> seen;
  for (const int32_t rank : ranks) {
    if (rank < 0 || rank >= config_.world_size) {
      fail(BP_INVALID, "new_group: {} is not a rank of group '{}' of {}", rank, config_.name, config_.world_size);
    }
    if (!seen.insert(rank).second) fail(BP_INVALID, "new_group: rank {} is named twice", rank);
  }
  if (ranks.empty()) fail(BP_INVALID, "new_group: a group has at least one rank");
  const uint64_t number = children_made_.fetch_add(1);
  GroupConfig child = config_;
  child.job = job_;
  child.reporter = reporter_;
  child.name = name.empty() ? fmt::format("{}.{}", config_.name, number) : name;
  child.world_size = static_cast<int32_t>(ranks.size());
  if (timeout_ns != 0) child.timeout_ns = timeout_ns;
  const auto self = std::find(ranks.begin(), ranks.end(), config_.rank);
  child.rank = self == ranks.end() ? -1 : static_cast<int32_t>(self - ranks.begin());
  child.global_ranks.clear();
  for (const int32_t rank : ranks) child.global_ranks.push_back(config_.global_ranks[static_cast<size_t>(rank)]);
  // Groups made by one call to split share a number; their lowest member tells them apart.
  const int32_t lowest = *std::min_element(ranks.begin(), ranks.end());
  child.key = fmt::format("{}.{}-{}", config_.key, number, lowest);
  child.store = make_prefix_store(config_.store, fmt::format("child{}-{}/", number, lowest));
  std::shared_ptr<Group> group = start(std::move(child));
  const std::lock_guard lock(mutex_);
  std::erase_if(children_, [](const auto& c) { return c.expired(); });
  children_.push_back(group);
  return group;
}

std::shared_ptr<Group> Group::split(int64_t color, int64_t key) {
  struct Choice {
    int64_t color;
    int64_t key;
  };
  const Choice mine = {color, key};
  std::vector<Choice> all(static_cast<size_t>(config_.world_size));
  bp_op op = {};
  op.struct_size = sizeof(bp_op);
  op.kind = BP_ALL_GATHER;
  op.dtype = BP_I64;
  op.input = {const_cast<Choice*>(&mine), 2, BP_HOST, 0};
  op.output = {all.data(), 2 * all.size(), BP_HOST, 0};
  run(op);
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < config_.world_size; ++rank) {
    if (color >= 0 && all[static_cast<size_t>(rank)].color == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&all](int32_t a, int32_t b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  if (!ranks.empty()) return new_group(ranks, "", 0);
  GroupConfig outside = config_;
  outside.name = fmt::format("{}.{}", config_.name, children_made_.fetch_add(1));
  outside.rank = -1;
  outside.world_size = 0;
  outside.global_ranks.clear();
  return start(std::move(outside));
}

}  // namespace backplane::core
