// SPDX-License-Identifier: Apache-2.0
#include "registry/choice.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "backplane/base/host.hpp"
#include "environment.hpp"
#include "error.hpp"
#include "options/names.hpp"
#include "registry/composite_member.hpp"
#include "security/secret.hpp"

namespace backplane::core {
namespace {

// The order in which `auto` tries backends. Others follow by name. A policy, not a dependency: any may be missing.
constexpr const char* kPreference[] = {"shm", "gloo", "zmq"};
// Backends that need all ranks in one memory_domain().
constexpr const char* kOfOneDomain[] = {"shm"};

constexpr const char* kChoiceKey = "choice";
constexpr const char* kTuningKey = "tuning";

bool joins_processes(const Member& member) {
  const uint32_t flags = member.backend->flags;
  return (member.backend->kinds & BP_KIND_PROCESS_GROUP) != 0 &&
         (flags & (BP_BACKEND_ONE_PROCESS | BP_BACKEND_LOCAL)) == 0;
}

bool serves_devices(const bp_backend& backend) {
  const auto* const end = backend.capabilities + backend.capability_count;
  return std::any_of(backend.capabilities, end,
                     [](const bp_capability* each) { return (each->memory & BP_BIT(BP_CUDA)) != 0; });
}

// Ordinals count the devices that are visible to the process.
std::string device_name(int32_t device) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return fmt::format("{} of {}", device, visible == nullptr ? "all" : visible);
}

size_t preference(const std::string& id) {
  return static_cast<size_t>(std::find(std::begin(kPreference), std::end(kPreference), id) - std::begin(kPreference));
}

bool needs_one_domain(const std::string& id) {
  return std::find(std::begin(kOfOneDomain), std::end(kOfOneDomain), id) != std::end(kOfOneDomain);
}

// The counter of ranks that can use a backend, per memory domain if it needs one.
std::string count_key(const std::string& id, const std::string& domain) {
  return needs_one_domain(id) ? fmt::format("can/{}/{}", id, domain) : fmt::format("can/{}", id);
}

// The counter of ranks that can use such a backend, each in its own domain.
std::string everywhere_key(const std::string& id) { return fmt::format("everywhere/{}", id); }

// The number of domains.
constexpr const char* kDomains = "domains";

std::string objection_key(const std::string& id) { return fmt::format("cannot/{}", id); }

std::string why_not(Store& store, const std::string& id, Deadline deadline) {
  const std::string key = objection_key(id);
  if (store.check({key}, deadline)) return store.get(key, deadline);
  if (needs_one_domain(id)) return "not all ranks have it, on one host and as one user";
  return "not all ranks have it";
}

std::string here_key(const std::string& domain) { return fmt::format("here/{}", domain); }

// The tuning table was measured on one host and applies only there.
TuningTable agreed_table(Store& store, int32_t world_size, const std::string& domain, Deadline deadline) {
  if (!store.check({kTuningKey}, deadline)) return {};
  if (store.add(here_key(domain), 0, deadline) != world_size) return {};
  return TuningTable(store.get(kTuningKey, deadline));
}

// The usable backends that can serve beside the chosen one. Ranks may wait for operations of both in any order, so both
// must progress without calls.
std::vector<std::string> able_to_share(const std::vector<Candidate>& mine, const std::string& chosen,
                                       const std::vector<std::string>& usable) {
  const auto is_autonomous = [&mine](const std::string& id) {
    return std::any_of(mine.begin(), mine.end(),
                       [&id](const Candidate& each) { return each.id == id && each.is_autonomous; });
  };
  std::vector<std::string> able;
  if (!is_autonomous(chosen)) return able;
  std::copy_if(usable.begin(), usable.end(), std::back_inserter(able), is_autonomous);
  return able;
}

// The objection of this rank to a candidate, "" if there is none. Two ranks must not share a device.
std::string device_objection(Store& store, const Candidate& mine, const std::string& domain, Deadline deadline) {
  if (!mine.objection.empty() || mine.device.empty()) return mine.objection;
  if (store.add(fmt::format("on/{}/{}/{}", mine.id, domain, mine.device), 1, deadline) == 1) return "";
  return "another rank uses the same device";
}

// " (remark)" of this rank's candidate.
std::string remark_on(const std::vector<Candidate>& mine, const std::string& id) {
  const auto found = std::find_if(mine.begin(), mine.end(), [&id](const Candidate& each) { return each.id == id; });
  return found == mine.end() || found->remark.empty() ? "" : fmt::format(" ({})", found->remark);
}

// The backend for the ranks of each domain beside `id`, which all ranks can use; empty if there is none.
std::string choose_inside(Store& store, int32_t world_size, const std::vector<Candidate>& mine, const std::string& id,
                          Deadline deadline) {
  std::string inside;
  for (const Candidate& each : mine) {
    if (each.id == id && !each.can_compose) return "";
    if (!inside.empty() || !needs_one_domain(each.id) || !each.objection.empty() || !each.can_compose) continue;
    if (store.add(everywhere_key(each.id), 0, deadline) == world_size) inside = each.id;
  }
  return inside;
}

// The choice, made by the last rank. An empty id: there is no backend, for the reason in `reason`.
Choice decide(Store& store, int32_t world_size, const std::vector<Candidate>& mine, const std::string& domain,
              Deadline deadline) {
  std::string rejected;
  std::string for_devices;
  std::vector<std::string> usable;
  for (const Candidate& each : mine) {
    if (each.objection.empty() && store.add(count_key(each.id, domain), 0, deadline) == world_size) {
      usable.push_back(each.id);
      if (for_devices.empty() && !each.device.empty()) for_devices = each.id;
    } else if (usable.empty()) {
      rejected += fmt::format("; not {}: {}", each.id, why_not(store, each.id, deadline));
    }
  }
  if (usable.empty()) {
    return {"", fmt::format("auto found no backend that all {} ranks can use{}; put one into a directory of "
                            "BACKPLANE_PLUGIN_PATH on each host",
                            world_size, rejected)};
  }
  // Backends for devices do not discover the address by which other hosts reach this one.
  if (store.add(here_key(domain), 0, deadline) != world_size) for_devices.clear();
  const TuningTable table = agreed_table(store, world_size, domain, deadline);
  const std::string id = table.fastest(usable, world_size);
  const int64_t domains = store.add(kDomains, 0, deadline);
  if (domains > 1 && domains < world_size) {
    const std::string inside = choose_inside(store, world_size, mine, id, deadline);
    if (!inside.empty()) {
      return {id,
              fmt::format("{}+{}: {} ranks on {} hosts, {} inside each host and {} between them", inside, id,
                          world_size, domains, inside, id),
              {},
              {},
              inside};
    }
  }
  const std::string measurements = table.measurements(id, usable, world_size);
  const char* const why = needs_one_domain(id) ? "ranks on one host" : "ranks, all of which can use it";
  std::string reason = fmt::format("{}: {} {}{}", id, world_size, why, remark_on(mine, id));
  if (!measurements.empty()) reason += fmt::format("; {}", measurements);
  const std::vector<BackendOverride> overrides = table.overrides(id, able_to_share(mine, id, usable), world_size);
  if (!overrides.empty()) reason += fmt::format("; {}", describe(overrides));
  if (!for_devices.empty()) {
    reason += fmt::format("; {} for device memory{}", for_devices, remark_on(mine, for_devices));
  }
  return {id, reason + rejected, overrides, for_devices};
}

// The text in the store: the three backends, the number of overrides, the overrides, then the reason.
std::string encode(const Choice& choice) {
  std::string text =
      fmt::format("{}\n{}\n{}\n{}\n", choice.id, choice.for_devices, choice.inside, choice.overrides.size());
  for (const BackendOverride& each : choice.overrides) {
    text += fmt::format("{} {} {} {}\n", each.operation, each.from, each.end, each.id);
  }
  return text + choice.reason;
}

Choice decode(const std::string& text) {
  std::istringstream in(text);
  Choice choice;
  std::getline(in, choice.id);
  std::getline(in, choice.for_devices);
  std::getline(in, choice.inside);
  size_t count = 0;
  in >> count;
  for (size_t i = 0; i < count && in; ++i) {
    BackendOverride each;
    in >> each.operation >> each.from >> each.end >> each.id;
    choice.overrides.push_back(each);
  }
  in.ignore(1);
  choice.reason.assign(std::istreambuf_iterator<char>(in), {});
  return choice;
}

}  // namespace

void check_security(const Member& member) {
  if (secret_variable().empty() || (member.backend->flags & (BP_BACKEND_AUTHENTICATES | BP_BACKEND_ONE_PROCESS)) != 0)
    return;
  fail(BP_UNSUPPORTED,
       "backend '{}' cannot authenticate its peers (auth=none), and the job has a secret; choose one that can "
       "(`backplane list` shows auth), or {}",
       member.id, without_secret_advice());
}

std::string choose_for_devices(const std::vector<Candidate>& mine) {
  const auto found = std::find_if(mine.begin(), mine.end(),
                                  [](const Candidate& each) { return !each.device.empty() && each.objection.empty(); });
  return found == mine.end() ? "" : found->id;
}

std::vector<Candidate> candidates(Registry& registry, int32_t world_size, int32_t device) {
  std::vector<std::string> ids = registry.known();
  std::stable_sort(ids.begin(), ids.end(),
                   [](const std::string& a, const std::string& b) { return preference(a) < preference(b); });
  std::vector<Candidate> found;
  for (const std::string& id : ids) {
    try {
      const Member& member = registry.lookup(id);
      if (!joins_processes(member)) continue;
      check_security(member);
      if (serves_devices(*member.backend) && device < 0) fail(BP_UNSUPPORTED, "no device was named for this rank");
      const std::string remark = probe_for(member, world_size);
      found.push_back({id, "", (member.backend->flags & BP_BACKEND_AUTONOMOUS) != 0, "", remark});
      if (serves_devices(*member.backend)) found.back().device = device_name(device);
      found.back().can_compose = can_compose(*member.backend);
    } catch (const Error& e) {
      found.push_back({id, e.what()});
    }
  }
  return found;
}

std::string memory_domain() {
  struct stat process_ids {};
  if (::stat("/proc/self/ns/pid", &process_ids) != 0) process_ids.st_ino = 0;
  return fmt::format("{} {} {}", base::boot_id(), process_ids.st_ino, ::geteuid());
}

std::string host_identity(int32_t global_rank) {
  constexpr const char* kVariable = "BACKPLANE_IMAGINED_HOSTS";
  const auto names = variable(kVariable);
  if (!names) return memory_domain();
  size_t begin = 0;
  for (int32_t rank = 0; rank < global_rank; ++rank) {
    const size_t comma = names->find(',', begin);
    if (comma == std::string::npos) {
      fail(BP_INVALID,
           "{} '{}' has no entry for rank {}; write one name for each rank, separated by commas, or unset it",
           kVariable, escaped(*names), global_rank);
    }
    begin = comma + 1;
  }
  return fmt::format("{} {}", memory_domain(), names->substr(begin, names->find(',', begin) - begin));
}

Choice agree_on_backend(Store& store, int32_t rank, int32_t world_size, const std::vector<Candidate>& mine,
                        const std::string& domain, const std::string& tuning, Deadline deadline) {
  if (store.add(here_key(domain), 1, deadline) == 1) store.add(kDomains, 1, deadline);
  if (rank == 0 && !tuning.empty()) store.set(kTuningKey, tuning, deadline);
  for (const Candidate& each : mine) {
    const std::string objection = device_objection(store, each, domain, deadline);
    if (objection.empty()) {
      store.add(count_key(each.id, domain), 1, deadline);
      if (needs_one_domain(each.id)) store.add(everywhere_key(each.id), 1, deadline);
    } else {
      store.compare_set(objection_key(each.id), "", fmt::format("rank {}: {}", rank, objection), deadline);
    }
  }
  if (store.add("done", 1, deadline) == world_size) {
    const Choice choice = decide(store, world_size, mine, domain, deadline);
    store.set(kChoiceKey, encode(choice), deadline);
  }
  Choice choice = decode(store.get(kChoiceKey, deadline));
  if (choice.id.empty()) throw Error(BP_UNSUPPORTED, choice.reason);
  return choice;
}

}  // namespace backplane::core
