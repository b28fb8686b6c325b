// SPDX-License-Identifier: Apache-2.0
//
// How a group starts: its members meet, compare their choices, start their agents, and agree on the outcome.
#include <utility>

#include "group/auto_choice.hpp"
#include "group/group.hpp"
#include "group/watchdog.hpp"
#include "liveness/process_identity.hpp"
#include "rendezvous/rendezvous.hpp"

namespace backplane::core {
namespace {

// The choices in which all members must agree.
std::string choices_of(const GroupConfig& config) {
  std::string text;
  for (const ChosenBackend& backend : config.backends) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ",
                        backend.memory ? (*backend.memory == BP_HOST ? "cpu:" : "cuda:") : "",
                        backend.options ? backend.options->fingerprint() : "auto");
  }
  for (const ChosenPlugin& layer : config.layers) {
    if ((layer.member->backend->flags & BP_BACKEND_TAGS) != 0) text += fmt::format(" within {}", layer.member->id);
  }
  std::string ranks;
  for (const int32_t rank : config.global_ranks) ranks += fmt::format(" {}", rank);
  return fmt::format("backend {} for ranks{}", text, ranks);
}

constexpr const char* kStarted = "ok";

// Tells all members the same about one step of the start: "" if it succeeded on all, else the sentence of the first
// member on which it failed. Costs each member three store calls.
std::string outcome_of(Store& store, int32_t world_size, const std::string& step, const std::string& problem,
                       Deadline deadline) {
  const std::string key = step + "/verdict";
  if (!problem.empty()) return store.compare_set(key, "", problem, deadline);
  if (store.add(step + "/done", 1, deadline) == world_size) store.compare_set(key, "", kStarted, deadline);
  const std::string outcome = store.get(key, deadline);
  return outcome == kStarted ? "" : outcome;
}

// The first member to come writes its choices to the store, the others compare.
void compare_choices(Store& store, const GroupConfig& config, Deadline deadline) {
  const std::string mine = choices_of(config);
  const std::string first = store.compare_set("choice", "", fmt::format("{}\n{}", config.rank, mine), deadline);
  const size_t line = first.find('\n');
  std::string problem;
  if (line != std::string::npos && first.substr(line + 1) != mine) {
    problem = fmt::format("the ranks of group '{}' disagree: rank {} chose {}, rank {} chose {}", config.name,
                          first.substr(0, line), first.substr(line + 1), config.rank, mine);
  }
  const std::string outcome = outcome_of(store, config.world_size, "choice", problem, deadline);
  if (!outcome.empty()) throw Error(BP_INVALID, outcome);
}

// How long a rank that could not start tries to tell the others why.
constexpr int64_t kPublishNs = INT64_C(2) * 1000000000;

int64_t start_timeout(const GroupConfig& config) { return timeout_or(config.start_timeout_ns, config.timeout_ns); }

// The choice that waits until all members have joined, so that a rank on which it fails can tell them.
void choose_late(GroupConfig* config, Store& store, Deadline deadline) {
  const auto choose = std::exchange(config->choose, nullptr);
  if (!choose) return;
  try {
    config->backends = choose();
  } catch (const Error& e) {
    outcome_of(store, config->world_size, "choice",
               fmt::format("group '{}' cannot start on rank {}: {}", config->name, config->rank, e.what()), deadline);
    throw;
  }
}

}  // namespace

std::shared_ptr<Group> Group::start(GroupConfig config, Group* parent) {
  JobResources job = std::exchange(config.job, {});
  if (config.rank < 0) job = {};  // a non-member does not end with the parent, and must not keep the job
  const std::shared_ptr<Group> group(new Group(std::move(config), std::move(job)));
  if (!group->member()) return group;
  const GroupConfig& own = group->config_;
  if (!group->job_.liveness && own.world_size > 1) {
    group->job_.liveness = Liveness::enroll(*own.store, own.rank, Deadline::after(start_timeout(own)));
  }
  group->store_ = own.store->view();
  if (parent != nullptr) parent->subgroups().adopt(group, own.survives_parent);
  try {
    group->start_agents(parent);
  } catch (...) {
    // Here, because the last owner may be the store's thread, which is reporting a loss to the group.
    group->destroy();
    throw;
  }
  return group;
}

void Group::start_agents(const Group* parent) {
  const UseGuard use(state_);  // destroy waits for this thread
  const Deadline deadline = Deadline::after(start_timeout(config_));
  if (job_.liveness) job_.liveness->add(this);
  bool joined = false;
  bool ready = false;
  try {
    join(*store_, config_.rank, config_.world_size, process_identity(), deadline);
    joined = true;
    choose_late(&config_, *store_, deadline);
    compare_choices(*store_, config_, deadline);
    // Once more where `auto` has chosen, since the options are known only then.
    if (choose_auto(&config_, store_, deadline)) {
      compare_choices(*make_prefix_store(store_, "chosen/"), config_, deadline);
    }
    for (const ChosenBackend& backend : config_.backends) start_agent(backend, deadline, parent);
    add_to_reporter();
    ready = true;
    // A rank on which a backend did not start would leave the others waiting for it.
    const std::string outcome = outcome_of(*store_, config_.world_size, "start", "", deadline);
    if (!outcome.empty()) fail(BP_PEER_LOST, "group '{}' cannot start: {}", config_.name, outcome);
  } catch (const std::exception& e) {
    const Error cause = start_failure(e);
    // A rank that did not join has no say. If the outcome says that all have started, this rank has as well, and the
    // failure counts as one after the start.
    const bool all_started = joined && publish_failure(cause.what()) == kStarted;
    if (!all_started || !ready) throw Error(cause);
  }
  state_.mark_started();
}

void Group::start_agent(const ChosenBackend& backend, Deadline deadline, const Group* parent) {
  std::shared_ptr<Agent> base;
  if (parent != nullptr && parent->state_.active()) base = parent->agents_.find(*backend.member);
  const std::vector<int32_t> none;
  agents_.start(backend, store_, deadline, std::move(base), parent == nullptr ? none : parent->config_.global_ranks,
                [watchdog = operations_.watchdog()](const Error& why) { watchdog->fail(why); });
  state_.throw_cause();  // an abort meanwhile did not see this agent
  if (state_.destroyed()) state_.refuse();
}

Error Group::start_failure(const std::exception& e) const {
  if (const auto cause = state_.cause()) return *cause;
  if (const auto* error = dynamic_cast<const Error*>(&e)) return failures_.explained(*error);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&e) != nullptr;
  return Error(memory ? BP_RESOURCE : BP_INTERNAL, memory ? "out of memory" : e.what());
}

// Makes the start fail on all ranks unless its outcome is known already. Returns the outcome. Uses the store that no
// abort of this group interrupts.
std::string Group::publish_failure(const std::string& problem) const {
  try {
    return config_.store->compare_set("start/verdict", "", problem, Deadline::after(kPublishNs));
  } catch (const Error&) {  // the others notice themselves that the store is lost
    return problem;
  }
}

}  // namespace backplane::core
