// SPDX-License-Identifier: Apache-2.0
#include "capi/world.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <numeric>

#include "capi/handles.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"
#include "registry/selection.hpp"
#include "rendezvous/round.hpp"

namespace backplane::core {
namespace {

constexpr const char* kUsualName = "world";

// The place where the ranks of a job met, and where they watch over each other. The last group of the job says goodbye.
struct Job {
  explicit Job(Rendezvous met) : meeting(std::move(met)) {}
  // The rank that serves the store lets the others finish with it; not for long if the job never came about, or if one
  // of them will never come.
  ~Job() {
    const bool complete = started && !(liveness && liveness->anybody_lost());
    leave(meeting, Deadline::after(INT64_C(1000000000) * (complete ? 5 : 1)));
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Rendezvous meeting;
  std::shared_ptr<Liveness> liveness;  // ends before the store
  bool started = false;
};

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
      backend.member = &registry.lookup(part.name);
      check_security(*backend.member);
      backend.options = make_options(*backend.member, part.options);
    }
    chosen.push_back(std::move(backend));
  }
  return chosen;
}

// The layers of every group of this process; the operator asks for them, not the program.
std::vector<ChosenPlugin> choose_layers(Registry& registry) {
  const char* environment = std::getenv("BACKPLANE_LAYERS");
  std::vector<ChosenPlugin> chosen;
  for (const SelectionPart& part : parse_layers(environment == nullptr ? "" : environment)) {
    const Member& member = registry.lookup_layer(part.name);
    Stage::check_kind(member, BP_KIND_LAYER);
    chosen.push_back({&member, make_options(member, part.options)});
  }
  return chosen;
}

// Reports an invalid rank to the other ranks, which wait for another process, through their store.
void tell_of_stranger(Store& store, int32_t rank, int32_t world_size) {
  constexpr int64_t kTellNs = INT64_C(10) * 1000000000;
  try {
    join(store, rank, world_size, process_identity(), Deadline::after(kTellNs));
  } catch (const Error& e) {  // as it must
    log(BP_LOG_DEBUG, "the others were told: {}", e.what());
  }
}

// How long a rank that cannot make its choice looks for the others, to tell them; they need not be there.
constexpr int64_t kTellNs = INT64_C(2) * 1000000000;

// They fail with the same sentence instead of waiting for this rank.
void tell_of_choice(Store& store, const std::string& group, int32_t rank, const Error& problem) {
  try {
    decline(store, fmt::format("rank {} cannot join group '{}': {}", rank, group, problem.what()),
            Deadline::after(kTellNs));
  } catch (const Error& e) {
    log(BP_LOG_DEBUG, "the others cannot be told of a failure: {}", e.what());
  }
}

void check_identity(int32_t rank, int32_t world_size) {
  if (world_size < 1) fail(BP_INVALID, "world_size {} is not at least 1", world_size);
  if (rank < 0 || rank >= world_size) fail(BP_INVALID, "rank {} is not in 0..{}", rank, world_size - 1);
}

// Keys of this group's own in a store that the program made and may use for several groups in turn.
std::shared_ptr<Store> own_keys(bp_store& handle, const std::string& name, int32_t rank) {
  const std::lock_guard lock(handle.mutex);
  const int generation = handle.generations[{name, rank}]++;
  return make_prefix_store(handle.store, fmt::format("group/{}/{}/", name, generation));
}

std::string name_of(const bp_group_config& config) {
  return config.name == nullptr || *config.name == '\0' ? kUsualName : config.name;
}

GroupConfig identify(const char* name, int32_t rank, int32_t world_size, int64_t timeout_ns) {
  check_identity(rank, world_size);
  GroupConfig made;
  made.name = name == nullptr || *name == '\0' ? kUsualName : name;
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

void meet_to_tell_of_choice(RendezvousRequest request, const std::string& group, const Error& problem) {
  if (request.timeout_ns < 0 || request.timeout_ns > kTellNs) request.timeout_ns = kTellNs;
  try {
    const Job never_begun(rendezvous(request));
    const Rendezvous& met = never_begun.meeting;
    tell_of_choice(*keys_of(met, group), group, met.rank, problem);
    // The server accepts no clients after the first has left, so wait until one rank has read the report.
    if (met.server && met.world_size > 1) met.store->get(kDepartedKey, Deadline::after(kTellNs));
  } catch (const Error& e) {  // no other rank, or no rendezvous
    log(BP_LOG_DEBUG, "the others cannot be told of a failure: {}", e.what());
  }
}

// Can this choice be made? Options are made later, once the rank is known.
void check_choice(Registry& registry, const char* requested) {
  for (const SelectionPart& part : parse_selection(selected_backend(requested))) {
    if (part.name == "auto") continue;
    const Member& member = registry.lookup(part.name);
    Stage::check_kind(member, BP_KIND_PROCESS_GROUP);
    check_security(member);
    complete_options(*member.backend, part.options);
  }
}

struct Default {
  std::mutex init_mutex;  // held while one is being made
  std::mutex mutex;       // guards group
  std::shared_ptr<Group> group;
};

Default& the_default() {
  static Default* const instance = new Default;  // other threads may use it while the process ends
  return *instance;
}

}  // namespace

std::shared_ptr<Group> create_group(const bp_group_config& config) {
  Registry& registry = registry_of(config.registry);
  if (config.store != nullptr) {
    if (config.world_size > 0 && (config.rank < 0 || config.rank >= config.world_size)) {
      tell_of_stranger(*own_keys(*config.store, name_of(config), config.rank), config.rank, config.world_size);
    }
    GroupConfig made = identify(config.name, config.rank, config.world_size, config.timeout_ns);
    made.device = config.device;
    made.store = own_keys(*config.store, made.name, made.rank);
    try {
      made.backends = choose(registry, config.backend);
      made.layers = choose_layers(registry);
    } catch (const Error& problem) {
      tell_of_choice(*made.store, made.name, made.rank, problem);
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
  try {  // before waiting for other ranks
    check_choice(registry, config.backend);
    layers = choose_layers(registry);
  } catch (const Error& problem) {
    meet_to_tell_of_choice(request, name_of(config), problem);
    throw;
  }
  auto job = std::make_shared<Job>(rendezvous(request));
  const Rendezvous& met = job->meeting;
  GroupConfig made = identify(config.name, met.rank, met.world_size, config.timeout_ns);
  made.device = config.device;
  made.backends = choose(registry, config.backend);
  made.layers = std::move(layers);
  made.store = keys_of(met, made.name);
  made.job.owner = job;
  if (met.world_size > 1) {
    job->liveness = Liveness::enroll(*made.store, met.rank, Deadline::after(made.timeout_ns));
    made.job.liveness = job->liveness;
  }
  auto group = Group::start(std::move(made));
  job->started = true;
  return group;
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

// Does the backend of this choice leave the default group alone? Why there is none is for create_group to say.
static bool leaves_default_alone(const bp_group_config& config) {
  try {
    const SelectionPart first = parse_selection(selected_backend(config.backend)).front();
    if (first.name == "auto") return false;
    return (registry_of(config.registry).lookup(first.name).backend->flags & BP_BACKEND_LOCAL) != 0;
  } catch (const Error&) {
    return false;
  }
}

std::shared_ptr<Group> init_default(const bp_group_config& config, bool wants_handle) {
  if (leaves_default_alone(config)) {
    if (!wants_handle) fail(BP_INVALID, "this backend leaves the default group alone; take the group that is returned");
    return create_group(config);
  }
  const std::lock_guard once(the_default().init_mutex);
  if (default_group()) {
    fail(BP_INVALID, "trying to initialize the default process group twice; call destroy_process_group first");
  }
  auto group = create_group(config);
  group->add_handle();
  const std::lock_guard lock(the_default().mutex);
  the_default().group = group;
  return group;
}

std::shared_ptr<Group> default_group() {
  const std::lock_guard lock(the_default().mutex);
  return the_default().group;
}

void destroy_default() {
  const auto group = default_group();
  if (!group) fail(BP_INVALID, "there is no default process group to destroy; call init_process_group first");
  end_group(group);
}

void end_group(const std::shared_ptr<Group>& group) {
  CallbackScope::refuse("end a group");
  bool was_default = false;
  {
    const std::lock_guard lock(the_default().mutex);
    was_default = the_default().group == group;
    if (was_default) the_default().group.reset();
  }
  group->destroy();
  if (was_default) group->drop_handle();
}

namespace {

// Where in a job's store the groups of now are: a job that has met by itself has a prefix for each round of init and
// destroy, a program that brought its own store has none. Waits until the group is there.
std::shared_ptr<Store> keys_of_group(const std::shared_ptr<Store>& store, const std::string& name, Deadline deadline) {
  constexpr int64_t kLookNs = INT64_C(100) * 1000000;
  const std::string group = fmt::format("group/{}/", name);
  for (;;) {
    const int64_t round = store->add(left_key(0), 0, deadline);
    for (const std::string& prefix : {round_prefix(round), std::string(), round_prefix(round - 1)}) {
      if (store->check({prefix + group + Reporter::kWorld}, deadline)) return make_prefix_store(store, prefix + group);
    }
    try {
      store->wait({round_prefix(round) + group + Reporter::kWorld}, std::min(deadline, Deadline::after(kLookNs)));
    } catch (const Error& e) {
      if (e.status() != BP_TIMEOUT) throw;
    }
    if (deadline.passed()) fail(BP_TIMEOUT, "no group of that name works with this store; has the job started?");
  }
}

}  // namespace

std::string trace_job(bp_store& store, const char* group, int64_t timeout_ns) {
  const std::string name = group == nullptr || *group == '\0' ? kUsualName : group;
  const Deadline deadline = Deadline::after(timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS));
  const std::shared_ptr<Store> keys = keys_of_group(store.store, name, deadline);
  int32_t world_size = 0;
  const auto traces = Reporter::traces(*keys, deadline, &world_size);
  std::string silent;
  std::string told;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const auto trace = traces.find(rank);
    if (trace == traces.end()) {
      silent += fmt::format("{}{}", silent.empty() ? "" : ", ", rank);
    } else if (trace->second.size() > 2) {
      told += (told.empty() ? "" : ",\n") + trace->second.substr(1, trace->second.size() - 2);
    }
  }
  return fmt::format("{{\"world_size\": {}, \"silent\": [{}], \"traces\": [{}]}}", world_size, silent, told);
}

}  // namespace backplane::core
