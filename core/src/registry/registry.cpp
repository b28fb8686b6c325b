// SPDX-License-Identifier: Apache-2.0
#include "registry/registry.hpp"

#include <algorithm>
#include <set>

#include "error.hpp"
#include "options/names.hpp"
#include "options/nearest.hpp"
#include "plugin/builtins.hpp"
#include "plugin/contract.hpp"
#include "plugin/loader.hpp"
#include "registry/composite_member.hpp"
#include "registry/selection.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

// ". Rejected: PATH: reason; PATH: reason".
std::string rejections(const plugin::Scan& scan) {
  std::string text;
  for (const plugin::FoundFile& file : scan.files) {
    if (!file.rejection.empty())
      text += fmt::format("{}{}: {}", text.empty() ? ". Rejected: " : "; ", file.path, file.rejection);
  }
  return text;
}

}  // namespace

Registry::Registry() {
  for (const bp_plugin* plugin : builtin_plugins()) {
    for (uint32_t i = 0; i < plugin->backend_count; ++i) add(*plugin->backends[i], plugin, "built in");
  }
}

Registry::~Registry() = default;

const Member& Registry::compose(const Member& inside, const Member& between) {
  auto made = std::make_unique<CompositeMember>(inside, between);
  const std::lock_guard lock(mutex_);
  return composites_.try_emplace(made->member.id, std::move(made)).first->second->member;
}

const Member* Registry::member(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto entry = members_.find(id);
  return entry == members_.end() ? nullptr : entry->second.get();
}

std::pair<const Member*, bool> Registry::add(const bp_backend& backend, const bp_plugin* plugin,
                                             const std::string& origin) {
  auto made = std::make_unique<Member>(Member{backend.id, upper(backend.id), origin, &backend, plugin});
  const std::lock_guard lock(mutex_);
  const auto [entry, fresh] = members_.try_emplace(backend.id, std::move(made));
  return {entry->second.get(), fresh};
}

bool Registry::registered(std::string_view name) {
  const std::string id = lower(name);
  if (member(id) != nullptr) return true;
  try {
    plugin::find(plugin::search_path(), id);
    return true;
  } catch (const Error&) {
    return false;
  }
}

const Member& Registry::register_backend(const bp_backend& backend) {
  if (backend.id == nullptr || !valid_id(backend.id)) {
    fail(BP_INVALID, "a backend's id is [a-z0-9_-]{{1,32}}, not '{}'",
         backend.id == nullptr ? "NULL" : escaped(backend.id));
  }
  const std::string problem = plugin::descriptor_problem(backend, backend.id, false);
  if (!problem.empty()) fail(BP_INVALID, "{}", problem);
  const auto [made, fresh] = add(backend, nullptr, "registered by this program");
  if (!fresh) fail(BP_INVALID, "RPC backend {}: already registered", made->name);
  return *made;
}

const Member& Registry::lookup(std::string_view name, const char* what, uint32_t kinds) {
  const std::string id = lower(name);
  if (const Member* known_member = member(id)) return *known_member;
  plugin::Match match;
  try {
    match = plugin::find(plugin::search_path(), id);
  } catch (const Error& e) {
    if (e.status() != BP_INVALID) throw Error(e.status(), fmt::format("cannot use {} '{}': {}", what, id, e.what()));
    const std::vector<std::string> ids = known(kinds);
    throw Error(e.status(),
                fmt::format("unknown {} '{}'.{} Available: {}. Searched: {}{}", what, escaped(name),
                            did_you_mean(id, ids), ids.empty() ? "none" : fmt::to_string(fmt::join(ids, ", ")),
                            e.what(), rejections(plugin::scan(plugin::search_path()))));
  }
  const bp_plugin* plugin = plugin::load(match.path, match.note);
  return *add(*plugin->backends[match.index], plugin, match.path).first;
}

std::vector<std::string> Registry::known(uint32_t kinds) {
  std::set<std::string> ids;
  for (const Member* m : members()) {
    if ((m->backend->kinds & kinds) != 0) ids.insert(m->id);
  }
  for (const plugin::FoundFile& file : plugin::scan(plugin::search_path()).files) {
    for (const plugin::FoundBackend& backend : file.backends) {
      const bool matches = (backend.note.kinds & kinds) != 0;
      if (matches && backend.state == plugin::FoundBackend::State::kAvailable) ids.insert(backend.note.id);
    }
  }
  return {ids.begin(), ids.end()};
}

std::vector<const Member*> Registry::members() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Member*> result;
  for (const auto& entry : members_) result.push_back(entry.second.get());
  return result;
}

Registry& default_registry() {
  static Registry* const instance = new Registry;  // never destroyed: plugins use it until the process ends
  return *instance;
}

}  // namespace backplane::core
