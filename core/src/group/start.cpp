// SPDX-License-Identifier: Apache-2.0
//
// How groups come to be: the first of a job, and those made from others.
#include <algorithm>
#include <set>
#include <utility>

#include "group/group.hpp"
#include "group/pass.hpp"
#include "group/watchdog.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"
#include "reduce/combine.hpp"
#include "registry/choice.hpp"
#include "registry/tuning.hpp"
#include "rendezvous/rendezvous.hpp"

namespace backplane::core {
namespace {

// What all members must have in common.
std::string fingerprint(const GroupConfig& config) {
  std::string text;
  for (const ChosenBackend& backend : config.backends) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ",
                        backend.memory ? (*backend.memory == BP_HOST ? "cpu:" : "cuda:") : "",
                        backend.options ? backend.options->fingerprint() : "auto");
  }
  for (const Chosen& layer : config.layers) {
    if ((layer.member->backend->flags & BP_BACKEND_TAGS) != 0) text += fmt::format(" within {}", layer.member->id);
  }
  std::string ranks;
  for (const int32_t rank : config.global_ranks) ranks += fmt::format(" {}", rank);
  return fmt::format("backend {} for ranks{}", text, ranks);
}

constexpr const char* kStarted = "ok";

// All members learn the same about one step of starting: "" if it went well on every one of them, else the sentence of
// the first that it went wrong on. Costs each member three store calls.
std::string verdict(Store& store, int32_t world_size, const std::string& step, const std::string& problem,
                    Deadline deadline) {
  const std::string key = step + "/verdict";
  if (!problem.empty()) return store.compare_set(key, "", problem, deadline);
  if (store.add(step + "/done", 1, deadline) == world_size) store.compare_set(key, "", kStarted, deadline);
  const std::string told = store.get(key, deadline);
  return told == kStarted ? "" : told;
}

// The first member to come writes down its choice, the others compare.
void agree(Store& store, const GroupConfig& config, Deadline deadline) {
  const std::string mine = fingerprint(config);
  const std::string first = store.compare_set("choice", "", fmt::format("{}\n{}", config.rank, mine), deadline);
  const size_t line = first.find('\n');
  std::string problem;
  if (line != std::string::npos && first.substr(line + 1) != mine) {
    problem = fmt::format("the ranks of group '{}' disagree: rank {} chose {}, rank {} chose {}", config.name,
                          first.substr(0, line), first.substr(line + 1), config.rank, mine);
  }
  const std::string told = verdict(store, config.world_size, "choice", problem, deadline);
  if (!told.empty()) throw Error(BP_INVALID, told);
}

// FNV-1a. Lists that share one by chance are told apart by agree().
uint64_t digest(const std::vector<int32_t>& ranks) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const int32_t rank : ranks) hash = (hash ^ static_cast<uint32_t>(rank)) * UINT64_C(0x100000001b3);
  return hash;
}

// How long a rank that could not start tries to tell the others why.
constexpr int64_t kTellNs = INT64_C(2) * 1000000000;

int64_t start_timeout(const GroupConfig& config) { return timeout_or(config.start_timeout_ns, config.timeout_ns); }

}  // namespace

std::shared_ptr<Group> Group::start(GroupConfig config, Group* parent) {
  std::shared_ptr<void> job = std::move(config.job);
  std::shared_ptr<Reporter> reporter = std::move(config.reporter);
  std::shared_ptr<Liveness> liveness = std::move(config.liveness);
  if (config.rank < 0) {  // who is no member does not end with the parent, and must not keep the job
    job.reset();
    reporter.reset();
  }
  std::shared_ptr<Group> group(new Group(std::move(config), std::move(job), std::move(reporter)));
  if (!group->member()) return group;
  const GroupConfig& own = group->config_;
  if (!liveness && own.world_size > 1) {
    liveness = Liveness::enroll(*own.store, own.rank, Deadline::after(start_timeout(own)));
  }
  group->liveness_ = std::move(liveness);
  group->store_ = own.store->view();
  if (parent != nullptr) parent->adopt(group, own.survives_parent);
  try {
    group->start_agents(parent);
  } catch (...) {
    // Here, for the last to let go of it may be the store's thread, which is telling it of a loss.
    group->destroy();
    throw;
  }
  return group;
}

void Group::start_agents(Group* parent) {
  const Presence presence(*this);  // destroy waits for this thread
  const Deadline deadline = Deadline::after(start_timeout(config_));
  if (liveness_) liveness_->add(this);
  bool joined = false;
  bool ready = false;
  try {
    join(*store_, config_.rank, config_.world_size, process_identity(), deadline);
    joined = true;
    choose_late(deadline);
    agree(*store_, config_, deadline);
    choose_backends(deadline);
    for (const ChosenBackend& backend : config_.backends) start_agent(backend, deadline, parent);
    take_seat();
    ready = true;
    // A rank on which a backend did not start would leave the others waiting for it.
    const std::string told = verdict(*store_, config_.world_size, "start", "", deadline);
    if (!told.empty()) fail(BP_PEER_LOST, "group '{}' cannot start: {}", config_.name, told);
  } catch (const std::exception& e) {
    const Error cause = why_not_started(e);
    // Whoever was not let in has no say. If all have started, this rank has, too: whatever came between it and the
    // verdict comes after the start for all.
    const bool all_started = joined && tell_failure(cause.what()) == kStarted;
    if (!all_started || !ready) throw Error(cause);
  }
  started_ = true;
}

// The choice that waits until all members are there, so that a rank that cannot make it can tell them.
void Group::choose_late(Deadline deadline) {
  const auto choose = std::exchange(config_.choose, nullptr);
  if (!choose) return;
  try {
    config_.backends = choose();
  } catch (const Error& e) {
    verdict(*store_, config_.world_size, "choice",
            fmt::format("group '{}' cannot start on rank {}: {}", config_.name, config_.rank, e.what()), deadline);
    throw;
  }
}

// What one `auto` of the selection, its part `number`, stands for.
Choice Group::choose_one(const ChosenBackend& part, size_t number, Deadline deadline) const {
  const auto mine = [&] { return candidates(*part.choose_from, config_.world_size, config_.device); };
  if (config_.world_size > 1 || !part.choose_from->registered("self")) {
    const auto store = make_prefix_store(store_, fmt::format("auto{}/", number));
    return agree_on_backend(*store, config_.rank, config_.world_size, mine(), memory_domain(),
                            config_.rank == 0 ? tuning_text() : "", deadline);
  }
  Choice choice = {"self", "self: the world has one rank"};
  if (config_.device >= 0) choice.for_devices = choose_for_devices(mine());
  if (!choice.for_devices.empty()) choice.reason += fmt::format("; {} for memory of devices", choice.for_devices);
  return choice;
}

// What `auto` stands for in this group, and in those made from it.
void Group::choose_backends(Deadline deadline) {
  bool chosen = false;
  std::vector<ChosenBackend> beside;
  constexpr const char* kNone = "auto found no backend for memory of devices that all ranks can use: {}";
  for (size_t i = 0; i < config_.backends.size(); ++i) {
    ChosenBackend& backend = config_.backends[i];
    if (backend.member != nullptr) continue;
    Choice choice = choose_one(backend, i, deadline);
    log(BP_LOG_INFO, "auto chose {}", choice.reason);
    if (backend.memory == BP_CUDA) {
      if (choice.for_devices.empty()) fail(BP_UNSUPPORTED, kNone, choice.reason);
      choice.id = choice.for_devices;
    }
    const Member& member = backend.choose_from->lookup(choice.id);
    backend.options = make_options(member, backend.given);
    backend.member = &member;
    add_exemptions(backend, choice.exemptions, &beside);
    if (!backend.memory && !choice.for_devices.empty() && choice.for_devices != choice.id) {
      const Member& other = backend.choose_from->lookup(choice.for_devices);
      beside.push_back({BP_CUDA, &other, make_options(other, {}), nullptr, {}});
      backend.memory = BP_HOST;
    }
    chosen = true;
  }
  config_.backends.insert(config_.backends.end(), beside.begin(), beside.end());
  // Now that options are known as what the backend makes of them.
  if (chosen) agree(*make_prefix_store(store_, "chosen/"), config_, deadline);
}

// Options are meant for the backend that was chosen.
void Group::add_exemptions(const ChosenBackend& chosen, const std::vector<Exemption>& exemptions,
                           std::vector<ChosenBackend>* backends) {
  if (chosen.memory && *chosen.memory != BP_HOST) return;  // host memory was measured
  for (const Exemption& each : exemptions) {
    uint32_t kind = 0;
    while (kind < BP_OP_COUNT && each.operation != op_name(kind)) ++kind;
    if (kind == BP_OP_COUNT) fail(BP_INTERNAL, "auto chose a backend for the unknown operation {}", each.operation);
    const Member& member = chosen.choose_from->lookup(each.id);
    auto found = std::find_if(backends->begin(), backends->end(),
                              [&member](const ChosenBackend& other) { return other.member == &member; });
    if (found == backends->end()) {
      ChosenBackend other = chosen;
      other.member = &member;
      other.options = make_options(member, {});
      backends->push_back(other);
      found = std::prev(backends->end());
    }
    found->only.push_back({kind, each.from, each.end});
  }
}

Error Group::why_not_started(const std::exception& e) const {
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return *cause_;
  }
  if (const auto* error = dynamic_cast<const Error*>(&e)) return explained(*error);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&e) != nullptr;
  return Error(memory ? BP_RESOURCE : BP_INTERNAL, memory ? "out of memory" : e.what());
}

// Makes the start fail on all ranks unless its verdict stands already; returns the verdict. Over the store that no
// abort of this group interrupts.
std::string Group::tell_failure(const std::string& problem) const {
  try {
    return config_.store->compare_set("start/verdict", "", problem, Deadline::after(kTellNs));
  } catch (const Error&) {  // a store that is lost tells the others itself
    return problem;
  }
}

// `even_broken`: shrink makes its group from one that is broken.
void Group::adopt(const std::shared_ptr<Group>& child, bool even_broken) {
  std::unique_lock lock(mutex_);
  const State state = state_.load();
  if (state == State::kDestroyed || (state == State::kBroken && !even_broken)) {
    lock.unlock();
    refuse();
  }
  std::erase_if(children_, [](const auto& c) { return c.expired(); });
  children_.push_back(child);
}

void Group::disown(const std::shared_ptr<Group>& child) {
  const std::lock_guard lock(mutex_);
  std::erase_if(children_, [&child](const auto& c) { return c.expired() || c.lock() == child; });
}

// Ends the start of this group, and that of the groups that are being made from it. What shrink makes is made from a
// broken group: an abort that comes late, of which a backend's failure told early, does not concern it.
void Group::end_start(const Error& cause) {
  if (store_) store_->interrupt(BP_CANCELLED, cause.what());  // as host.h promises to a backend that is starting
  std::vector<std::shared_ptr<Group>> starting;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : children_) {
      auto child = each.lock();
      const bool survives = child && child->config_.survives_parent && state_.load() != State::kDestroyed;
      if (child && !child->started_ && !survives) starting.push_back(std::move(child));
    }
  }
  for (const auto& child : starting) child->abort(cause);
}

// The agent of this backend that a group made from this one may build on.
std::shared_ptr<Agent> Group::parent_agent(const Member& member) const {
  const std::lock_guard lock(mutex_);
  if (cause_ || state_.load() != State::kActive) return nullptr;
  const auto found = std::find_if(agents_.begin(), agents_.end(),
                                  [&member](const auto& agent) { return &agent->member() == &member; });
  return found == agents_.end() ? nullptr : *found;
}

void Group::start_agent(const ChosenBackend& backend, Deadline deadline, Group* parent) {
  AgentConfig agent;
  agent.name = config_.name;
  agent.rank = config_.rank;
  agent.world_size = config_.world_size;
  agent.device = config_.device;
  agent.global_ranks = config_.global_ranks;
  agent.store = make_prefix_store(store_, fmt::format("agent{}/", agents_.size()));
  agent.timeout_ns = deadline.left_ns();
  agent.on_failure = [watchdog = watchdog_](const Error& why) { watchdog->fail(why); };
  if (parent != nullptr) {
    const auto its = parent->parent_agent(*backend.member);
    agent.parent = its ? &its->bare() : nullptr;
    agent.parent_owner = its;
  }
  for (size_t i = 0; agent.parent != nullptr && i < config_.global_ranks.size(); ++i) {
    const auto& ranks = parent->config_.global_ranks;
    agent.parent_ranks.push_back(
        static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), config_.global_ranks[i]) - ranks.begin()));
  }
  auto made = std::make_shared<Agent>(Chosen{backend.member, backend.options}, config_.layers, agent);
  agent.parent_owner.reset();
  {
    const std::lock_guard lock(mutex_);
    agents_.push_back(std::move(made));
    if (cause_) throw Error(*cause_);  // the abort did not see this agent
  }
  if (state_.load() == State::kDestroyed) refuse();
  for (const SizeRange& range : backend.only) exempt_[range.kind].push_back({range, agents_.back().get()});
  for (uint32_t memory = 0; memory < BP_MEMORY_COUNT && backend.only.empty(); ++memory) {
    const bool named = backend.memory == memory;
    if (named || (!backend.memory && by_memory_[memory] == nullptr)) by_memory_[memory] = agents_.back().get();
  }
}

void Group::check_members(const std::vector<int32_t>& ranks) const {
  std::set<int32_t> seen;
  for (const int32_t rank : ranks) {
    if (rank < 0 || rank >= config_.world_size) {
      fail(BP_INVALID, "new_group: {} is not a rank of group '{}' of {}", rank, config_.name, config_.world_size);
    }
    if (!seen.insert(rank).second) fail(BP_INVALID, "new_group: rank {} is named twice", rank);
  }
  if (ranks.empty()) fail(BP_INVALID, "new_group: a group has at least one rank");
}

// Without a name, keys and store of its own.
GroupConfig Group::child_config(const std::vector<int32_t>& ranks, const std::string& name, int64_t timeout_ns) const {
  GroupConfig child = config_;
  child.job = job_;
  child.reporter = reporter_;
  child.liveness = liveness_;
  child.start_timeout_ns = BP_INHERIT_TIMEOUT;
  child.survives_parent = false;
  child.name = name;
  child.world_size = static_cast<int32_t>(ranks.size());
  child.timeout_ns = timeout_or(timeout_ns, child.timeout_ns);
  const auto self = std::find(ranks.begin(), ranks.end(), config_.rank);
  child.rank = self == ranks.end() ? -1 : static_cast<int32_t>(self - ranks.begin());
  child.global_ranks.clear();
  for (const int32_t rank : ranks) child.global_ranks.push_back(config_.global_ranks[static_cast<size_t>(rank)]);
  return child;
}

std::shared_ptr<Group> Group::new_group(const std::vector<int32_t>& ranks, const std::string& name, int64_t timeout_ns,
                                        ChooseBackends choose) {
  const Pass pass(*this);
  check_members(ranks);
  const uint64_t number = children_made_.fetch_add(1);
  GroupConfig child = child_config(ranks, name.empty() ? fmt::format("{}.{}", config_.name, number) : name, timeout_ns);
  child.choose = std::move(choose);
  // Groups made by one call to split share a number; their lowest member tells them apart.
  const int32_t lowest = *std::min_element(ranks.begin(), ranks.end());
  child.key = fmt::format("{}.{}-{}", config_.key, number, lowest);
  child.store = make_prefix_store(config_.store, fmt::format("child{}-{}/", number, lowest));
  return start(std::move(child), this);
}

// What the members have in common without the others: their ranks, and how many groups of them they have made.
std::shared_ptr<Group> Group::new_group_by_members(const std::vector<int32_t>& ranks, const std::string& name,
                                                   int64_t timeout_ns) {
  const Pass pass(*this);
  check_members(ranks);
  if (std::find(ranks.begin(), ranks.end(), config_.rank) == ranks.end()) {
    fail(BP_INVALID, "new_group_by_members: rank {} of group '{}' is not among the ranks; only members call it",
         config_.rank, config_.name);
  }
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = made_by_members_[ranks]++;
  }
  const std::string own = fmt::format("m{}-{}-{:016x}", number, ranks.size(), digest(ranks));
  GroupConfig child = child_config(ranks, name.empty() ? fmt::format("{}.{}", config_.name, own) : name, timeout_ns);
  child.key = fmt::format("{}.{}", config_.key, own);
  child.store = make_prefix_store(config_.store, fmt::format("child-{}/", own));
  return start(std::move(child), this);
}

}  // namespace backplane::core
