// SPDX-License-Identifier: Apache-2.0
#include "group/auto_choice.hpp"

#include <algorithm>

#include "log.hpp"
#include "reduce/combine.hpp"
#include "registry/choice.hpp"
#include "registry/tuning.hpp"
#include "rendezvous/rendezvous.hpp"

namespace backplane::core {
namespace {

// `number`: the index of the part in the selection.
Choice choose_one(const GroupConfig& config, const ChosenBackend& part, size_t number,
                  const std::shared_ptr<Store>& keys, Deadline deadline) {
  const auto mine = [&] { return candidates(*part.choose_from, config.world_size, config.device); };
  if (config.world_size > 1 || !part.choose_from->registered("self")) {
    const auto store = make_prefix_store(keys, fmt::format("auto{}/", number));
    return agree_on_backend(*store, config.rank, config.world_size, mine(),
                            host_identity(config.global_ranks[static_cast<size_t>(config.rank)]),
                            config.rank == 0 ? tuning_text() : "", deadline);
  }
  Choice choice = {"self", "self: the world has one rank"};
  if (config.device >= 0) choice.for_devices = choose_for_devices(mine());
  if (!choice.for_devices.empty()) choice.reason += fmt::format("; {} for memory of devices", choice.for_devices);
  return choice;
}

// Adds the backends that are faster at some sizes, with default options. The given options are for the chosen backend.
void add_overrides(const ChosenBackend& chosen, const std::vector<BackendOverride>& overrides,
                   std::vector<ChosenBackend>* backends) {
  if (chosen.memory && *chosen.memory != BP_HOST) return;  // overrides are for host memory
  for (const BackendOverride& each : overrides) {
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

}  // namespace

bool choose_auto(GroupConfig* group, const std::shared_ptr<Store>& store, Deadline deadline) {
  GroupConfig& config = *group;
  bool chosen = false;
  std::vector<ChosenBackend> added;
  constexpr const char* kNone = "auto found no backend for memory of devices that all ranks can use: {}";
  for (size_t i = 0; i < config.backends.size(); ++i) {
    ChosenBackend& backend = config.backends[i];
    if (backend.member != nullptr) continue;
    Choice choice = choose_one(config, backend, i, store, deadline);
    log(BP_LOG_INFO, "auto chose {}", choice.reason);
    if (backend.memory == BP_CUDA) {
      if (choice.for_devices.empty()) fail(BP_UNSUPPORTED, kNone, choice.reason);
      choice.id = choice.for_devices;
    }
    const Member& member = backend.choose_from->lookup(choice.id);
    if (choice.inside.empty() || backend.memory == BP_CUDA) {
      backend.options = make_options(member, backend.given);
      backend.member = &member;
    } else {
      const Member& composite = backend.choose_from->compose(backend.choose_from->lookup(choice.inside), member);
      backend.options = make_composite_options(composite, {}, backend.given);
      backend.member = &composite;
    }
    add_overrides(backend, choice.overrides, &added);
    if (!backend.memory && !choice.for_devices.empty() && choice.for_devices != choice.id) {
      const Member& other = backend.choose_from->lookup(choice.for_devices);
      added.push_back({BP_CUDA, &other, make_options(other, {}), nullptr, {}});
      backend.memory = BP_HOST;
    }
    chosen = true;
  }
  config.backends.insert(config.backends.end(), added.begin(), added.end());
  return chosen;
}

}  // namespace backplane::core
