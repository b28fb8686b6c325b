// SPDX-License-Identifier: Apache-2.0
#include "capi/job.hpp"

#include <algorithm>
#include <numeric>

#include "capi/handles.hpp"
#include "environment.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"
#include "registry/selection.hpp"
#include "rendezvous/round.hpp"

namespace backplane::core {
namespace {

constexpr const char* kDefaultName = "world";

// The rendezvous of a job and the failure detector of its ranks, owned by the job's groups.
struct Job {
  explicit Job(Rendezvous met) : rendezvous(std::move(met)) {}
  // The rank that serves the store waits until the others no longer use it. The limit is shorter if the job did not
  // start: ranks that never came are not reported lost.
  ~Job() {
    detector.reset();  // its keys are those of the round, which end with it
    leave(rendezvous, Deadline::after(INT64_C(1000000000) * (started ? 5 : 1)), failure);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Rendezvous rendezvous;
  std::shared_ptr<FailureDetector> detector;
  bool started = false;
  std::string failure;  // why it did not start
};

// The backend that a part names: one of the registry, or a composite. Checks that the job may use it.
const Member& named_member(Registry& registry, const SelectionPart& part) {
  const Member& first = registry.lookup(part.name);
  if (part.between.empty()) {
    check_security(first);
    return first;
  }
  const Member& second = registry.lookup(part.between.front().name);
  check_security(first);
  check_security(second);
  return registry.compose(first, second);
}

std::shared_ptr<const BackendOptions> named_options(const Member& member, const SelectionPart& part) {
  if (member.parts.empty()) return make_options(member, part.options);
  return make_composite_options(member, part.options, part.between.front().options);
}

std::vector<ChosenBackend> choose(Registry& registry, const char* requested) {
  const std::string text = selected_backend(requested);
  std::vector<ChosenBackend> chosen;
  for (const SelectionPart& part : parse_selection(text)) {
    ChosenBackend backend;
    backend.memory = part.memory;
    if (part.name == "auto") {
      backend.choose_from = &registry;
      backend.given = part.options;
    } else {
      backend.member = &named_member(registry, part);
      backend.options = named_options(*backend.member, part);
    }
    chosen.push_back(std::move(backend));
  }
  return chosen;
}

// The layers of all groups of this process, chosen by the operator.
std::vector<ChosenPlugin> choose_layers(Registry& registry) {
  std::vector<ChosenPlugin> chosen;
  for (const SelectionPart& part : parse_layers(trusted_variable("BACKPLANE_LAYERS").value_or(""))) {
    const Member& member = registry.lookup_layer(part.name);
    PluginInstance::check_kind(member, BP_KIND_LAYER);
    chosen.push_back({&member, make_options(member, part.options)});
  }
  return chosen;
}

// Reports this process's invalid rank through the store to the other ranks, which would wait for the missing one.
void report_invalid_rank(Store& store, int32_t rank, int32_t world_size) {
  constexpr int64_t kJoinNs = INT64_C(10) * 1000000000;
  try {
    join(store, rank, world_size, process_identity(), Deadline::after(kJoinNs));
  } catch (const Error& e) {  // always thrown, because the rank is invalid
    log(BP_LOG_DEBUG, "reported to the other ranks: {}", e.what());
  }
}

// The time limit for reporting a failed choice of backends to the other ranks.
constexpr int64_t kReportNs = INT64_C(2) * 1000000000;

// Makes the other ranks fail with the same text instead of waiting for this rank.
void report_failed_choice(Store& store, const std::string& group, int32_t rank, const Error& problem) {
  try {
    decline(store, fmt::format("rank {} cannot join group '{}': {}", rank, group, problem.what()),
            Deadline::after(kReportNs));
  } catch (const Error& e) {
    log(BP_LOG_DEBUG, "cannot report a failure to the other ranks: {}", e.what());
  }
}

void check_identity(int32_t rank, int32_t world_size) {
  if (world_size < 1) fail(BP_INVALID, "world_size {} is not at least 1", world_size);
  if (rank < 0 || rank >= world_size) fail(BP_INVALID, "rank {} is not in 0..{}", rank, world_size - 1);
}

// The keys of this group in a store that the program created and may use for several groups in sequence.
std::shared_ptr<Store> own_keys(bp_store& store, const std::string& name, int32_t rank) {
  bp_store& handle = live(&store, "store");
  const std::lock_guard lock(handle.mutex);
  const int generation = handle.generations[{name, rank}]++;
  return make_prefix_store(handle.store, fmt::format("group/{}/{}/", name, generation));
}

std::string name_of(const bp_group_config& config) {
  return config.name == nullptr || *config.name == '\0' ? kDefaultName : config.name;
}

GroupConfig identify(const char* name, int32_t rank, int32_t world_size, int64_t timeout_ns) {
  check_identity(rank, world_size);
  GroupConfig made;
  made.name = name == nullptr || *name == '\0' ? kDefaultName : name;
  made.rank = rank;
  made.world_size = world_size;
  made.timeout_ns = timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS);
  made.global_ranks.resize(static_cast<size_t>(world_size));
  std::iota(made.global_ranks.begin(), made.global_ranks.end(), 0);
  return made;
}

std::shared_ptr<Store> keys_of(const Rendezvous& met, const std::string& group) {
  return make_prefix_store(met.store, fmt::format("group/{}/", group));
}

void join_and_report_failed_choice(RendezvousRequest request, const std::string& group, const Error& problem) {
  if (request.timeout_ns < 0 || request.timeout_ns > kReportNs) request.timeout_ns = kReportNs;
  try {
    Job unstarted(rendezvous(request));
    unstarted.failure = problem.what();
    const Rendezvous& met = unstarted.rendezvous;
    report_failed_choice(*keys_of(met, group), group, met.rank, problem);
    // The server accepts no clients after the first has left, so wait until one rank has read the report.
    if (met.server && met.world_size > 1) met.store->get(kDepartedKey, Deadline::after(kReportNs));
  } catch (const Error& e) {  // no other rank, or no rendezvous
    log(BP_LOG_DEBUG, "cannot report a failure to the other ranks: {}", e.what());
  }
}

// Throws if the choice is invalid. Its options are made later, when the rank is known. Returns true if a library below
// a backend has a world of its own, for which it may need the launcher's connection.
bool check_choice(Registry& registry, const char* requested) {
  bool has_own_world = false;
  for (const SelectionPart& part : parse_selection(selected_backend(requested))) {
    if (part.name == "auto") continue;
    const auto check = [&registry, &has_own_world](const SelectionPart& one) {
      const Member& member = registry.lookup(one.name);
      PluginInstance::check_kind(member, BP_KIND_PROCESS_GROUP);
      check_security(member);
      complete_options(*member.backend, one.options);
      has_own_world = has_own_world || (member.backend->flags & BP_BACKEND_ONE_WORLD) != 0;
    };
    check(part);
    for (const SelectionPart& between : part.between) check(between);
    named_member(registry, part);  // throws if they cannot be composed
  }
  return has_own_world;
}

}  // namespace

std::shared_ptr<Group> create_group(const bp_group_config& config) {
  Registry& registry = registry_of(config.registry);
  if (config.store != nullptr) {
    if (config.world_size > 0 && (config.rank < 0 || config.rank >= config.world_size)) {
      report_invalid_rank(*own_keys(*config.store, name_of(config), config.rank), config.rank, config.world_size);
    }
    GroupConfig made = identify(config.name, config.rank, config.world_size, config.timeout_ns);
    made.device = config.device;
    made.store = own_keys(*config.store, made.name, made.rank);
    try {
      made.backends = choose(registry, config.backend);
      made.layers = choose_layers(registry);
    } catch (const Error& problem) {
      report_failed_choice(*made.store, made.name, made.rank, problem);
      throw;
    }
    return Group::start(std::move(made));
  }
  RendezvousRequest request;
  if (config.init_method != nullptr && *config.init_method != '\0') request.init_method = config.init_method;
  request.rank = config.rank;
  request.world_size = config.world_size;
  request.timeout_ns = timeout_or(config.timeout_ns, BP_DEFAULT_TIMEOUT_NS);
  std::vector<ChosenPlugin> layers;
  try {  // before this rank waits for others
    request.keeps_launcher = check_choice(registry, config.backend);
    layers = choose_layers(registry);
  } catch (const Error& problem) {
    join_and_report_failed_choice(request, name_of(config), problem);
    throw;
  }
  auto job = std::make_shared<Job>(rendezvous(request));
  const Rendezvous& met = job->rendezvous;
  GroupConfig made = identify(config.name, met.rank, met.world_size, config.timeout_ns);
  made.device = config.device;
  made.layers = std::move(layers);
  made.store = keys_of(met, made.name);
  made.job.owner = job;
  try {
    made.backends = choose(registry, config.backend);
    if (met.world_size > 1) {
      job->detector = FailureDetector::enroll(*met.store, met.rank, Deadline::after(made.timeout_ns));
      made.job.detector = job->detector;
    }
  } catch (const Error& problem) {
    job->failure = problem.what();
    report_failed_choice(*made.store, made.name, made.rank, problem);
    throw;
  }
  try {
    auto group = Group::start(std::move(made));
    job->started = true;
    return group;
  } catch (const Error& e) {
    job->failure = e.what();
    throw;
  }
}

std::shared_ptr<Group> join_group(const bp_group_config& config, int64_t timeout_ns) {
  if (config.store == nullptr) fail(BP_INVALID, "`config.store` must be the store that the members pass to grow");
  if (config.rank != -1 || config.world_size != -1) {
    fail(BP_INVALID, "the members decide the rank of a newcomer; leave `rank` and `world_size` -1");
  }
  Registry& registry = registry_of(config.registry);
  GroupConfig made;
  made.device = config.device;
  made.timeout_ns = timeout_or(config.timeout_ns, BP_DEFAULT_TIMEOUT_NS);
  made.backends = choose(registry, config.backend);
  made.layers = choose_layers(registry);
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, made.timeout_ns));
  return join_as_newcomer(made, live(config.store, "config.store").store, deadline);
}

std::shared_ptr<Group> group_with_backend(Group& parent, const char* backend, int64_t timeout_ns) {
  const int32_t world_size = parent.config().world_size;
  std::vector<int32_t> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return parent.subgroups().new_group(ranks, "", timeout_ns, [text = std::string(backend == nullptr ? "" : backend)] {
    return choose(default_registry(), text.c_str());
  });
}

std::shared_ptr<Group> init_backend(const Member& member, bp_store* store, const char* name, int32_t rank,
                                    int32_t world_size, const std::shared_ptr<const BackendOptions>& options,
                                    int64_t timeout_ns) {
  if (store == nullptr) fail(BP_INVALID, "`store` must be a bp_store. (null)");
  if (&options->member() != &member) {
    fail(BP_INVALID, "`rpc_backend_options` must be options of BackendType.{}, these are of BackendType.{}",
         member.name, options->member().name);
  }
  check_security(member);
  GroupConfig made = identify(name, rank, world_size, timeout_ns);
  made.backends.push_back({std::nullopt, &member, options, nullptr, {}});
  made.layers = choose_layers(default_registry());
  made.store = own_keys(*store, made.name, rank);
  return Group::start(std::move(made));
}

namespace {

// The keys of a group in its job's store. Waits until the group exists. A job with a rendezvous has a prefix for each
// round of init and destroy. A store that the program created has no such prefix.
std::shared_ptr<Store> keys_of_group(const std::shared_ptr<Store>& store, const std::string& name, Deadline deadline) {
  constexpr int64_t kPollNs = INT64_C(100) * 1000000;
  const std::string group = fmt::format("group/{}/", name);
  for (;;) {
    const int64_t round = store->add(left_key(0), 0, deadline);
    for (const std::string& prefix : {round_prefix(round), std::string(), round_prefix(round - 1)}) {
      if (store->check({prefix + group + Reporter::kWorld}, deadline)) return make_prefix_store(store, prefix + group);
    }
    try {
      store->wait({round_prefix(round) + group + Reporter::kWorld}, std::min(deadline, Deadline::after(kPollNs)));
    } catch (const Error& e) {
      if (e.status() != BP_TIMEOUT) throw;
    }
    if (deadline.passed()) {
      fail(BP_TIMEOUT, "no group '{}' uses this store: its job has not started, or has ended", name);
    }
  }
}

}  // namespace

std::string trace_job(bp_store& store, const char* group, int64_t timeout_ns) {
  const std::string name = group == nullptr || *group == '\0' ? kDefaultName : group;
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS));
  const std::shared_ptr<Store> keys = keys_of_group(store.store, name, deadline);
  int32_t world_size = 0;
  const auto traces = Reporter::traces(*keys, deadline, &world_size);
  std::string silent;
  std::string answered;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const auto trace = traces.find(rank);
    if (trace == traces.end()) {
      silent += fmt::format("{}{}", silent.empty() ? "" : ", ", rank);
    } else if (trace->second.size() > 2) {
      answered += (answered.empty() ? "" : ",\n") + trace->second.substr(1, trace->second.size() - 2);
    }
  }
  return fmt::format("{{\"world_size\": {}, \"silent\": [{}], \"traces\": [{}]}}", world_size, silent, answered);
}

}  // namespace backplane::core
