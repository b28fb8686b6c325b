// SPDX-License-Identifier: Apache-2.0
#include "registry/choice.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "error.hpp"
#include "security/secret.hpp"

namespace backplane::core {
namespace {

// The order in which `auto` tries backends that join processes; those not named here come after, by name. A policy, not
// a dependency: none of them need exist.
constexpr const char* kPreference[] = {"shm", "gloo", "zmq"};
// Those of them that are for ranks of one shared_place().
constexpr const char* kOfOnePlace[] = {"shm"};

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

// Ordinals count the devices that a process may see.
std::string device_name(int32_t device) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return fmt::format("{} of {}", device, visible == nullptr ? "all" : visible);
}

size_t place(const std::string& id) {
  return static_cast<size_t>(std::find(std::begin(kPreference), std::end(kPreference), id) - std::begin(kPreference));
}

bool is_of_one_place(const std::string& id) {
  return std::find(std::begin(kOfOnePlace), std::end(kOfOnePlace), id) != std::end(kOfOnePlace);
}

// Counts the ranks that can use a backend; those in other places count for themselves if that matters.
std::string count_key(const std::string& id, const std::string& place) {
  return is_of_one_place(id) ? fmt::format("can/{}/{}", id, place) : fmt::format("can/{}", id);
}

std::string objection_key(const std::string& id) { return fmt::format("cannot/{}", id); }

std::string why_not(Store& store, const std::string& id, Deadline deadline) {
  const std::string key = objection_key(id);
  if (store.check({key}, deadline)) return store.get(key, deadline);
  if (is_of_one_place(id)) return "not all ranks have it, on one host and as one user";
  return "not all ranks have it";
}

std::string here_key(const std::string& place) { return fmt::format("here/{}", place); }

// What was measured counts where it was measured: on one host.
TuningTable agreed_table(Store& store, int32_t world_size, const std::string& place, Deadline deadline) {
  if (!store.check({kTuningKey}, deadline)) return {};
  if (store.add(here_key(place), 0, deadline) != world_size) return {};
  return TuningTable(store.get(kTuningKey, deadline));
}

// Those of the usable that can stand beside the chosen one: ranks may wait for what two of them serve in any order, so
// that both must move on while nobody waits for them.
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

// Two ranks on one device are nothing that a backend for devices can use.
std::string device_objection(Store& store, const Candidate& mine, const std::string& place, Deadline deadline) {
  if (!mine.objection.empty() || mine.device.empty()) return mine.objection;
  if (store.add(fmt::format("on/{}/{}/{}", mine.id, place, mine.device), 1, deadline) == 1) return "";
  return "its device is another rank's, too";
}

// What this rank was told of the machine, in brackets.
std::string remark_on(const std::vector<Candidate>& mine, const std::string& id) {
  const auto found = std::find_if(mine.begin(), mine.end(), [&id](const Candidate& each) { return each.id == id; });
  return found == mine.end() || found->remark.empty() ? "" : fmt::format(" ({})", found->remark);
}

// When all have spoken. An empty id: nothing will do, for this reason.
Choice decide(Store& store, int32_t world_size, const std::vector<Candidate>& mine, const std::string& place,
              Deadline deadline) {
  std::string passed_over;
  std::string for_devices;
  std::vector<std::string> usable;
  for (const Candidate& each : mine) {
    if (each.objection.empty() && store.add(count_key(each.id, place), 0, deadline) == world_size) {
      usable.push_back(each.id);
      if (for_devices.empty() && !each.device.empty()) for_devices = each.id;
    } else if (usable.empty()) {
      passed_over += fmt::format("; not {}: {}", each.id, why_not(store, each.id, deadline));
    }
  }
  if (usable.empty()) {
    return {"", fmt::format("auto found no backend that all {} ranks can use{}; put one into a directory of "
                            "BACKPLANE_PLUGIN_PATH on each host",
                            world_size, passed_over)};
  }
  // Backends for devices do not find out by themselves by which address other hosts reach this one.
  if (store.add(here_key(place), 0, deadline) != world_size) for_devices.clear();
  const TuningTable table = agreed_table(store, world_size, place, deadline);
  const std::string id = table.fastest(usable, world_size);
  const std::string evidence = table.evidence(id, usable, world_size);
  const char* const why = is_of_one_place(id) ? "ranks on one host" : "ranks, all of which can use it";
  std::string reason = fmt::format("{}: {} {}", id, world_size, why);
  if (!evidence.empty()) reason += fmt::format("; {}", evidence);
  const std::vector<Exemption> exemptions = table.exemptions(id, able_to_share(mine, id, usable), world_size);
  if (!exemptions.empty()) reason += fmt::format("; {}", describe(exemptions));
  if (!for_devices.empty()) {
    reason += fmt::format("; {} for memory of devices{}", for_devices, remark_on(mine, for_devices));
  }
  return {id, reason + passed_over, exemptions, for_devices};
}

// A choice in the store: its backends, how many exemptions there are, they, and the reason, which is the rest.
std::string encode(const Choice& choice) {
  std::string text = fmt::format("{}\n{}\n{}\n", choice.id, choice.for_devices, choice.exemptions.size());
  for (const Exemption& each : choice.exemptions) {
    text += fmt::format("{} {} {} {}\n", each.operation, each.from, each.end, each.id);
  }
  return text + choice.reason;
}

Choice decode(const std::string& text) {
  std::istringstream in(text);
  Choice choice;
  std::getline(in, choice.id);
  std::getline(in, choice.for_devices);
  size_t count = 0;
  in >> count;
  for (size_t i = 0; i < count && in; ++i) {
    Exemption each;
    in >> each.operation >> each.from >> each.end >> each.id;
    choice.exemptions.push_back(each);
  }
  in.ignore(1);
  choice.reason.assign(std::istreambuf_iterator<char>(in), {});
  return choice;
}

}  // namespace

void check_security(const Member& member) {
  const std::string variable = secret_variable();
  if (variable.empty() || (member.backend->flags & (BP_BACKEND_AUTHENTICATES | BP_BACKEND_ONE_PROCESS)) != 0) return;
  fail(BP_UNSUPPORTED,
       "backend '{}' cannot authenticate its peers (auth=none), and the job has a secret; choose one that can "
       "(`backplane list` shows auth), or unset {}",
       member.id, variable);
}

std::string choose_for_devices(const std::vector<Candidate>& mine) {
  const auto found = std::find_if(mine.begin(), mine.end(),
                                  [](const Candidate& each) { return !each.device.empty() && each.objection.empty(); });
  return found == mine.end() ? "" : found->id;
}

std::vector<Candidate> candidates(Registry& registry, int32_t world_size, int32_t device) {
  std::vector<std::string> ids = registry.known();
  std::stable_sort(ids.begin(), ids.end(),
                   [](const std::string& a, const std::string& b) { return place(a) < place(b); });
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
    } catch (const Error& e) {
      found.push_back({id, e.what()});
    }
  }
  return found;
}

std::string shared_place() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat process_ids {};
  if (::stat("/proc/self/ns/pid", &process_ids) != 0) process_ids.st_ino = 0;
  return fmt::format("{} {} {}", boot, process_ids.st_ino, ::geteuid());
}

Choice agree_on_backend(Store& store, int32_t rank, int32_t world_size, const std::vector<Candidate>& mine,
                        const std::string& place, const std::string& tuning, Deadline deadline) {
  store.add(here_key(place), 1, deadline);
  if (rank == 0 && !tuning.empty()) store.set(kTuningKey, tuning, deadline);
  for (const Candidate& each : mine) {
    const std::string objection = device_objection(store, each, place, deadline);
    if (objection.empty()) {
      store.add(count_key(each.id, place), 1, deadline);
    } else {
      store.compare_set(objection_key(each.id), "", fmt::format("rank {}: {}", rank, objection), deadline);
    }
  }
  if (store.add("done", 1, deadline) == world_size) {
    const Choice choice = decide(store, world_size, mine, place, deadline);
    store.set(kChoiceKey, encode(choice), deadline);
  }
  Choice choice = decode(store.get(kChoiceKey, deadline));
  if (choice.id.empty()) throw Error(BP_UNSUPPORTED, choice.reason);
  return choice;
}

}  // namespace backplane::core
