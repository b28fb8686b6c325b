// SPDX-License-Identifier: Apache-2.0
#include "plugin/contract.hpp"

#include <cstring>

#include "error.hpp"
#include "options/names.hpp"
#include "plugin/option_schema.hpp"
#include "plugin/reject.hpp"

namespace backplane::core::plugin {
namespace {

constexpr size_t kMaxText = 4096;  // bytes; bounds the search for a missing terminator

bool good_text(const char* text) {
  if (text == nullptr) return false;
  const size_t size = strnlen(text, kMaxText);
  return size < kMaxText && printable({text, size});
}

void check_head(const bp_plugin& plugin) {
  if (plugin.magic != BP_MAGIC) {
    reject(kBroken, "its " BP_PLUGIN_SYMBOL " has the magic number 0x{:08x}, not 0x{:08x}", plugin.magic, BP_MAGIC);
  }
  if (!BP_HAS(&plugin, backend_count)) {
    reject(kBroken, "its " BP_PLUGIN_SYMBOL " has a struct_size of {}, too small for ABI {}.0", plugin.struct_size,
           BP_ABI_MAJOR);
  }
  if (plugin.need_minor > BP_ABI_MINOR) {
    reject(kNewer, "it needs a core with ABI {}.{}, this one has {}.{}", BP_ABI_MAJOR, plugin.need_minor, BP_ABI_MAJOR,
           BP_ABI_MINOR);
  }
  if (!good_text(plugin.vendor)) reject(kBroken, "its vendor is NULL or not printable UTF-8");
  if (plugin.backend_count == 0) reject(kBroken, "it has no backends");
  if (plugin.backends == nullptr) reject(kBroken, "its table of backends is NULL");
}

template <typename T>
void expect_same(const char* what, const T& in_note, const T& in_plugin) {
  if (in_note != in_plugin) reject(kBroken, "its note says {} {}, its code says {}", what, in_note, in_plugin);
}

// Empty if there is no problem.
std::string capability_problem(const bp_capability* capability, bool newer) {
  if (capability == nullptr) return "is NULL";
  if (!BP_HAS(capability, memory)) return fmt::format("has a struct_size of {}", capability->struct_size);
  if (capability->op >= 64 || (capability->op >= BP_OP_COUNT && !newer)) {
    return fmt::format("is for the unknown operation {}", capability->op);
  }
  const bool data = capability->op != BP_BARRIER && capability->op < BP_OP_COUNT;
  const bool reduces = (BP_BIT(capability->op) & BP_REDUCTIONS) != 0;
  if ((data && (capability->dtypes == 0 || capability->memory == 0)) || (reduces && capability->reduce_ops == 0)) {
    return fmt::format("lists no dtypes, memory or reduce ops for operation {}", capability->op);
  }
  return {};
}

std::string capabilities_problem(const bp_backend& backend, std::string_view name, bool newer) {
  constexpr uint32_t kMaxCapabilities = 1024;
  if (backend.capability_count > kMaxCapabilities) {
    return fmt::format("backend '{}' has {} capabilities; at most {} are allowed", name, backend.capability_count,
                       kMaxCapabilities);
  }
  if (backend.capability_count > 0 && backend.capabilities == nullptr) {
    return fmt::format("the table of capabilities of backend '{}' is NULL", name);
  }
  for (uint32_t i = 0; i < backend.capability_count; ++i) {
    const std::string problem = capability_problem(backend.capabilities[i], newer);
    if (!problem.empty()) return fmt::format("capability {} of backend '{}' {}", i, name, problem);
  }
  return {};
}

void check_backend(const bp_backend& backend, const NoteBackend& note, bool newer) {
  const std::string problem = descriptor_problem(backend, note.id, newer);
  if (!problem.empty()) reject(kBroken, "{}", problem);
  expect_same<std::string_view>("backend", note.id, backend.id);
  expect_same<std::string_view>(fmt::format("backend '{}' has version", note.id).c_str(), note.version,
                                backend.version);
  expect_same(fmt::format("backend '{}' has kinds", note.id).c_str(), note.kinds, backend.kinds);
  expect_same(fmt::format("backend '{}' has flags", note.id).c_str(), note.flags, backend.flags);
  uint64_t ops = 0;
  for (uint32_t i = 0; i < backend.capability_count; ++i) ops |= BP_BIT(backend.capabilities[i]->op);
  expect_same(fmt::format("backend '{}' has operations", note.id).c_str(), note.ops, ops);
}

}  // namespace

std::string descriptor_problem(const bp_backend& backend, std::string_view name, bool newer) {
  constexpr size_t kMaxVersion = sizeof(bp_note_backend::version) - 1;
  if (!BP_HAS(&backend, finalize)) {
    return fmt::format("backend '{}' has a struct_size of {}, too small for ABI {}.0", name, backend.struct_size,
                       BP_ABI_MAJOR);
  }
  if (!good_text(backend.id)) return fmt::format("the id of backend '{}' is NULL or not printable UTF-8", name);
  if (!good_text(backend.version) || !good_text(backend.summary)) {
    return fmt::format("the version or summary of backend '{}' is NULL or not printable UTF-8", name);
  }
  if (strnlen(backend.version, kMaxVersion + 1) > kMaxVersion) {
    return fmt::format("the version of backend '{}' is longer than {} bytes", name, kMaxVersion);
  }
  if (backend.kinds == 0) return fmt::format("backend '{}' has no kind", name);
  if (backend.init == nullptr) return fmt::format("backend '{}' has no init function", name);
  if ((backend.construct_options == nullptr) != (backend.destroy_options == nullptr)) {
    return fmt::format("backend '{}' has only one of construct_options and destroy_options", name);
  }
  if (backend.tag_bits != 0 && (backend.tag_bits < 16 || backend.tag_bits > 64)) {
    return fmt::format("backend '{}' has {} tag bits, not 16 to 64 (or 0 for all 64)", name, backend.tag_bits);
  }
  std::string problem = capabilities_problem(backend, name, newer);
  if (!problem.empty()) return problem;
  const std::string schema = option_schema_problem(backend);
  return schema.empty() ? schema : fmt::format("backend '{}': {}", name, schema);
}

void check_contract(const bp_plugin& plugin, const Note& note) {
  check_head(plugin);
  expect_same("it is built for ABI minor", note.built_minor, plugin.built_minor);
  expect_same("it needs ABI minor", note.need_minor, plugin.need_minor);
  expect_same<size_t>("it has a number of backends of", note.backends.size(), plugin.backend_count);
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    if (plugin.backends[i] == nullptr) reject(kBroken, "its backend {} is NULL", i);
    check_backend(*plugin.backends[i], note.backends[i], plugin.built_minor > BP_ABI_MINOR);
  }
}

}  // namespace backplane::core::plugin
