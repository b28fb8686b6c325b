// SPDX-License-Identifier: Apache-2.0
//
// The start of a group: its members join, compare their configurations, start their agents, and agree on the outcome.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "group/auto_choice.hpp"
#include "group/group.hpp"
#include "group/live_groups.hpp"
#include "group/watchdog.hpp"
#include "liveness/process_identity.hpp"
#include "rendezvous/rendezvous.hpp"

namespace backplane::core {
namespace {

std::string choices_text(const GroupConfig& config, const std::vector<ChosenBackend>& backends) {
  std::string text;
  for (const ChosenBackend& backend : backends) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ",
                        backend.memory ? (*backend.memory == BP_HOST ? "cpu:" : "cuda:") : "",
                        backend.options ? backend.options->fingerprint() : "auto");
  }
  for (const ChosenPlugin& layer : config.layers) {
    if ((layer.member->backend->flags & BP_BACKEND_TAGS) != 0) text += fmt::format(" within {}", layer.member->id);
  }
  return "backend " + text;
}

// The part of the configuration that must be the same on all members.
std::string choices_of(const GroupConfig& config) {
  return fmt::format("{} for ranks {}", choices_text(config, config.backends), fmt::join(config.global_ranks, " "));
}

constexpr const char* kStarted = "ok";

// A failure that all members report alike.
struct CommonFailure : Error {
  using Error::Error;
  explicit CommonFailure(const Error& error) : Error(error) {}
};

// The outcome of a step of the start, the same on all members: empty if the step succeeded on all, otherwise the
// problem of the first member on which it failed. Costs each member three store calls.
std::string outcome_of(Store& store, int32_t world_size, const std::string& step, const std::string& problem,
                       Deadline deadline) {
  const std::string key = step + "/outcome";
  if (!problem.empty()) return store.compare_set(key, "", problem, deadline);
  if (store.add(step + "/done", 1, deadline) == world_size) store.compare_set(key, "", kStarted, deadline);
  const std::string outcome = store.get(key, deadline);
  return outcome == kStarted ? "" : outcome;
}

// The first member writes its choices to the store. The others compare theirs.
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
  if (!outcome.empty()) throw CommonFailure(BP_INVALID, outcome);
}

// The outcome of a failed start: the status, the rank that failed, or -1, and the sentence.
std::string encode_failure(const Error& failure) {
  return fmt::format("{} {} {}", failure.status(), failure.peer_rank(), failure.what());
}

CommonFailure decode_failure(const std::string& outcome) {
  const size_t rank = outcome.find(' ') + 1;
  const size_t text = outcome.find(' ', rank) + 1;
  return CommonFailure(static_cast<int32_t>(std::atoi(outcome.c_str())), outcome.substr(text),
                       static_cast<int32_t>(std::atoi(outcome.c_str() + rank)));
}

// The time limit for reporting a failed start to the other ranks.
constexpr int64_t kPublishNs = INT64_C(2) * 1000000000;

int64_t start_timeout(const GroupConfig& config) { return timeout_or(config.start_timeout_ns, config.timeout_ns); }

// Runs config->choose. Called after all members have joined, so that a failure can be reported to them.
void choose_backends(GroupConfig* config, Store& store, Deadline deadline) {
  const auto choose = std::exchange(config->choose, nullptr);
  if (!choose) return;
  config->requested.clear();
  try {
    config->backends = choose();
  } catch (const Error& e) {
    outcome_of(store, config->world_size, "choice",
               fmt::format("group '{}' cannot start on rank {}: {}", config->name, config->rank, e.what()), deadline);
    throw CommonFailure(e);
  }
}

Error start_failure(Group& group, const std::exception& e) {
  if (const auto cause = group.state().cause()) return *cause;
  if (const auto* error = dynamic_cast<const Error*>(&e)) return group.failures().explained(*error);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&e) != nullptr;
  return Error(memory ? BP_RESOURCE : BP_INTERNAL, memory ? "out of memory" : e.what());
}

// Unless the outcome of the start is known already, makes the start fail on all ranks, including those whose backends
// are still starting. Returns the outcome. Uses the store that an abort of this group does not interrupt.
std::string publish_failure(const Group& group, const Error& cause, bool is_common) {
  const GroupConfig& config = group.config();
  const JobResources& job = group.job();
  const bool is_loss = job.detector && job.detector->is_known_loss(cause, config.global_ranks);
  // The others get this rank's status: where a backend is missing on all ranks, all of them may choose another one.
  const Error common =
      is_loss
          ? cause
          : Error(cause.status(), fmt::format("group '{}' cannot start: {}", config.name, cause.what()), config.rank);
  const std::string failure = encode_failure(common);
  try {
    const std::string outcome = config.store->compare_set("start/outcome", "", failure, Deadline::after(kPublishNs));
    if (outcome == failure && job.reporter && !is_loss && !is_common) {
      job.reporter->tell(
          {Query::Kind::kBroken, config.key, config.rank, 0, common.status(), common.peer_rank(), common.what()});
    }
    return outcome;
  } catch (const Error&) {  // the store is lost, which the other ranks detect
    return failure;
  }
}

AgentConfig agent_config(Group& group, size_t backend, Deadline deadline, Group* parent) {
  const GroupConfig& own = group.config();
  AgentConfig config;
  config.name = own.name;
  config.rank = own.rank;
  config.world_size = own.world_size;
  config.device = own.device;
  config.global_ranks = own.global_ranks;
  config.store = make_prefix_store(group.store(), fmt::format("agent{}/", backend));
  config.timeout_ns = deadline.left_ns();
  config.on_failure = [watchdog = group.operations().watchdog()](const Error& why) { watchdog->fail(why); };
  if (parent == nullptr) return config;
  const std::shared_ptr<Agent> base = parent->agents().find(*own.backends[backend].member);
  config.is_derived = base != nullptr;
  if (!base || !parent->state().active()) return config;  // the parent of a backend is not aborted
  config.parent = &base->backend_agent();
  config.parent_owner = base;
  const std::vector<int32_t>& parents = parent->config().global_ranks;
  for (const int32_t rank : own.global_ranks) {
    const auto found = std::find(parents.begin(), parents.end(), rank);
    config.parent_ranks.push_back(static_cast<int32_t>(found - parents.begin()));
  }
  return config;
}

// Before `auto` chooses. A subgroup inherits the choice of its parent.
void keep_request(GroupConfig* config) {
  const bool chooses = std::any_of(config->backends.begin(), config->backends.end(),
                                   [](const ChosenBackend& backend) { return backend.member == nullptr; });
  if (chooses || config->requested.empty()) config->requested = config->backends;
}

}  // namespace

std::string requested_choices(const GroupConfig& config) {
  return choices_text(config, config.requested.empty() ? config.backends : config.requested);
}

std::shared_ptr<Group> Group::start(GroupConfig config, Group* parent) {
  JobResources job = std::exchange(config.job, {});
  if (config.rank < 0) job = {};  // a non-member does not end with the parent, and must not keep the job
  const std::shared_ptr<Group> group(new Group(std::move(config), std::move(job)));
  if (!group->member()) return group;
  const GroupConfig& own = group->config_;
  GroupTrace::check_directory();
  if (!group->job_.detector && own.world_size > 1) {
    group->job_.detector = FailureDetector::enroll(*own.store, own.rank, Deadline::after(start_timeout(own)));
  }
  group->store_ = own.store->view();
  add_live_group(group);
  if (parent != nullptr) parent->subgroups().adopt(group, own.survives_parent);
  try {
    group->start_agents(own.has_newcomers ? nullptr : parent);  // newcomers have no part of the parent's agents
  } catch (...) {
    // Not left to the destructor, which may run on the thread that reports losses to the group.
    group->destroy();
    throw;
  }
  return group;
}

void Group::start_agents(Group* parent) {
  const UseGuard use(state_);  // destroy waits for this thread
  const Deadline deadline = Deadline::after(start_timeout(config_));
  if (job_.detector) job_.detector->add(this);
  bool joined = false;
  bool ready = false;
  try {
    add_to_reporter();  // before join, so that this rank gets the failures that other ranks report after it
    join(*store_, config_.rank, config_.world_size, process_identity(), deadline);
    joined = true;
    keys_ = std::make_shared<GroupKeys>(config_.store->view(), config_.rank, config_.global_ranks, job_.detector);
    if (!job_.keys) job_.keys = keys_;
    choose_backends(&config_, *store_, deadline);
    keep_request(&config_);
    compare_choices(*store_, config_, deadline);
    // Compare again if `auto` has chosen: the options are known only now.
    if (choose_auto(&config_, store_, deadline)) {
      compare_choices(*make_prefix_store(store_, "chosen/"), config_, deadline);
    }
    for (size_t i = 0; i < config_.backends.size(); ++i) {
      agents_.start(config_.backends[i], agent_config(*this, i, deadline, parent));
      state_.throw_cause();  // an abort during the start did not reach this agent
      if (state_.destroyed()) state_.refuse();
    }
    ready = true;
    // A rank on which a backend did not start would leave the others waiting for it.
    const std::string outcome = outcome_of(*store_, config_.world_size, "start", "", deadline);
    if (!outcome.empty()) throw decode_failure(outcome);
  } catch (const std::exception& e) {
    const Error cause = start_failure(*this, e);
    const bool is_common = dynamic_cast<const CommonFailure*>(&e) != nullptr;
    // A rank that did not join publishes nothing. If all ranks, including this one, have already reported a successful
    // start, the failure counts as one after the start.
    const std::string outcome = joined ? publish_failure(*this, cause, is_common) : "";
    // A peer that seems lost may have ended its start because a third rank failed.
    if (cause.status() == BP_PEER_LOST && !outcome.empty() && outcome != kStarted) throw decode_failure(outcome);
    if (outcome != kStarted || !ready) throw Error(cause);
  }
  state_.mark_started();
}

}  // namespace backplane::core
