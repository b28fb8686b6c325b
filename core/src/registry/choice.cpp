// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "error.hpp"
#include "registry/registry.hpp"
#include "store/secret.hpp"

namespace backplane::core {
namespace {

// The order in which `auto` tries backends that join processes; those not named here come after, by name. A policy, not
// a dependency: none of them need exist.
constexpr const char* kPreference[] = {"gloo", "zmq"};

bool joins_processes(const Member& member) {
  const uint32_t flags = member.backend->flags;
  return (member.backend->kinds & BP_KIND_PROCESS_GROUP) != 0 &&
         (flags & (BP_BACKEND_ONE_PROCESS | BP_BACKEND_LOCAL)) == 0;
}

size_t place(const std::string& id) {
  return static_cast<size_t>(std::find(std::begin(kPreference), std::end(kPreference), id) - std::begin(kPreference));
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

std::string choose_automatically(Registry& registry, int32_t world_size, std::string* reason) {
  if (world_size == 1 && registry.registered("self")) {
    *reason = "self: the world has one rank";
    return "self";
  }
  std::vector<std::string> ids = registry.known();
  std::stable_sort(ids.begin(), ids.end(),
                   [](const std::string& a, const std::string& b) { return place(a) < place(b); });
  std::string passed_over;
  for (const std::string& id : ids) {
    try {
      const Member& member = registry.lookup(id);
      if (!joins_processes(member)) continue;
      check_security(member);
      probe(member);
      *reason = fmt::format("{}: the first viable of the order of preference{}", id, passed_over);
      return id;
    } catch (const Error& e) {
      passed_over += fmt::format("; not {}: {}", id, e.what());
    }
  }
  fail(BP_UNSUPPORTED,
       "auto found no backend that joins processes{}; put one into a directory of BACKPLANE_PLUGIN_PATH", passed_over);
}

}  // namespace backplane::core
