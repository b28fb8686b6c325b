// SPDX-License-Identifier: Apache-2.0
//
// Group `load`: the descriptor, from bp_plugin down to the last capability, and the note that describes it.
#include <algorithm>
#include <cstring>
#include <set>

#include "groups.hpp"
#include "load_elf.hpp"
#include "load_open.hpp"

namespace backplane::conformance::load {
namespace {

constexpr uint32_t kMaxCount = 4096;  // of backends, options, capabilities; a larger number is invalid

bool newer(const bp_plugin& plugin) { return plugin.built_minor > BP_ABI_MINOR; }

// Leaves the body with a finding unless `count` pointers can be read.
template <typename T>
void require_table(Rank& rank, const T* const* table, uint32_t count, const std::string& what) {
  rank.require(count <= kMaxCount, "a sane number of " + what, std::to_string(count));
  if (count == 0) return;
  rank.require(table != nullptr, "a table of " + what, "NULL");
  for (uint32_t i = 0; i < count; ++i) {
    rank.require(table[i] != nullptr, fmt::format("an entry {} in the table of {}", i, what), "NULL");
  }
}

// The plugin, after a check that all its structs can be read.
const bp_plugin& walkable(Rank& rank) {
  const bp_plugin& plugin = *open_plugin(rank).plugin;
  rank.step("reading the descriptor");
  rank.require(BP_HAS(&plugin, backend_count), "a bp_plugin of minor 0 at least",
               fmt::format("struct_size {}", plugin.struct_size));
  rank.require(plugin.backend_count > 0, "at least one backend", "none");
  require_table(rank, plugin.backends, plugin.backend_count, "backends");
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend& backend = *plugin.backends[i];
    rank.step(fmt::format("reading the descriptor of backend {}", i));
    rank.require(BP_HAS(&backend, finalize), fmt::format("a bp_backend {} of minor 0 at least", i),
                 fmt::format("struct_size {}", backend.struct_size));
    require_table(rank, backend.capabilities, backend.capability_count, fmt::format("capabilities of backend {}", i));
    require_table(rank, backend.options, backend.option_count, fmt::format("options of backend {}", i));
  }
  return plugin;
}

std::string name_of(const bp_backend& backend) {
  return printable(backend.id) ? "backend '" + std::string(backend.id) + "'" : "a backend without an id";
}

void magic_and_version(Rank& rank) {
  const bp_plugin& plugin = *open_plugin(rank).plugin;
  rank.step("reading the descriptor");
  rank.require(plugin.magic == BP_MAGIC, fmt::format("the magic number 0x{:x}", BP_MAGIC),
               fmt::format("0x{:x}", plugin.magic));
  rank.check(BP_HAS(&plugin, backend_count), "a bp_plugin of minor 0 at least",
             fmt::format("struct_size {}", plugin.struct_size));
  rank.check(plugin.need_minor <= BP_ABI_MINOR, fmt::format("a plugin for ABI {}.{}", BP_ABI_MAJOR, BP_ABI_MINOR),
             fmt::format("it needs minor {}", plugin.need_minor));
  rank.check(plugin.need_minor <= plugin.built_minor, "a plugin needs no later minor than it was built with",
             fmt::format("it needs {} and was built with {}", plugin.need_minor, plugin.built_minor));
}

void nothing_null(Rank& rank) {
  const bp_plugin& plugin = walkable(rank);
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend& backend = *plugin.backends[i];
    rank.check(backend.init != nullptr, "an init function of " + name_of(backend), "NULL");
    rank.check((backend.construct_options == nullptr) == (backend.destroy_options == nullptr),
               "both or none of construct_options and destroy_options in " + name_of(backend), "one of them");
  }
}

void struct_short(Rank& rank) {
  const bp_plugin& plugin = walkable(rank);
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend& backend = *plugin.backends[i];
    for (uint32_t j = 0; j < backend.capability_count; ++j) {
      const uint32_t size = backend.capabilities[j]->struct_size;
      rank.check(size >= 32, fmt::format("capability {} of {} is 32 bytes at least", j, name_of(backend)),
                 std::to_string(size));
    }
    for (uint32_t j = 0; j < backend.option_count; ++j) {
      const uint32_t size = backend.options[j]->struct_size;
      rank.check(size >= 64, fmt::format("option {} of {} is 64 bytes at least", j, name_of(backend)),
                 std::to_string(size));
    }
  }
}

void ids_and_texts(Rank& rank) {
  const bp_plugin& plugin = walkable(rank);
  rank.check(printable(plugin.vendor), "a vendor in printable UTF-8", "NULL, endless or unprintable");
  std::set<std::string> ids;
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend& backend = *plugin.backends[i];
    const std::string id = printable(backend.id) ? backend.id : "";
    const bool good = !id.empty() && id.size() <= 32 &&
                      id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == std::string::npos;
    rank.check(good, fmt::format("an id of backend {} of 1 to 32 of a-z, 0-9, _ and -", i), "'" + id + "'");
    rank.check(ids.insert(id).second, "ids that differ", "'" + id + "' comes twice");
    const std::string version = printable(backend.version) ? backend.version : "";
    rank.check(!version.empty() && version.size() <= 23, "a version of 1 to 23 bytes in " + name_of(backend),
               "'" + version + "'");
    rank.check(printable(backend.summary), "a summary in one line of printable UTF-8 in " + name_of(backend),
               "NULL, endless or unprintable");
  }
}

void check_capability(Rank& rank, const bp_capability& capability, const std::string& what, bool later) {
  constexpr uint64_t kMemory = BP_BIT(BP_MEMORY_COUNT) - 1;
  rank.require(capability.op < (later ? 64 : BP_OP_COUNT), what + " is for an operation of types.h",
               fmt::format("operation {}", capability.op));
  if (capability.op >= BP_OP_COUNT) return;
  const bool reduces = (BP_BIT(capability.op) & BP_REDUCTIONS) != 0;
  const bool barrier = capability.op == BP_BARRIER;
  rank.check((capability.dtypes != 0) != barrier, what + (barrier ? " has no dtypes" : " has dtypes"),
             fmt::format("mask {}", capability.dtypes));
  rank.check((capability.memory != 0) != barrier, what + (barrier ? " has no memory" : " has memory kinds"),
             fmt::format("mask {}", capability.memory));
  rank.check((capability.reduce_ops != 0) == reduces, what + (reduces ? " has reduce ops" : " has no reduce ops"),
             fmt::format("mask {}", capability.reduce_ops));
  if (later) return;
  rank.check((capability.dtypes & ~BP_ALL_DTYPES) == 0, what + " has dtypes of types.h only",
             fmt::format("mask {}", capability.dtypes));
  rank.check((capability.reduce_ops & ~BP_ALL_REDUCE_OPS) == 0, what + " has reduce ops of types.h only",
             fmt::format("mask {}", capability.reduce_ops));
  rank.check((capability.memory & ~kMemory) == 0, what + " has memory kinds of types.h only",
             fmt::format("mask {}", capability.memory));
}

void masks_in_range(Rank& rank) {
  constexpr uint32_t kKinds = BP_KIND_PROCESS_GROUP | BP_KIND_RPC | BP_KIND_LAYER;
  constexpr uint32_t kFlags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_AUTONOMOUS | BP_BACKEND_THREADS |
                              BP_BACKEND_LOCAL | BP_BACKEND_ONE_PROCESS | BP_BACKEND_BOUNDED |
                              BP_BACKEND_AUTHENTICATES | BP_BACKEND_RPC_OVER_GROUP | BP_BACKEND_ANY_TAG |
                              BP_BACKEND_BLOCKING_INIT | BP_BACKEND_ONE_WORLD;
  const bp_plugin& plugin = walkable(rank);
  const bool later = newer(plugin);
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend& backend = *plugin.backends[i];
    rank.check(backend.kinds != 0 && (later || (backend.kinds & ~kKinds) == 0),
               "one or more kinds of plugin.h in " + name_of(backend), fmt::format("mask {}", backend.kinds));
    rank.check(later || (backend.flags & ~kFlags) == 0, "no flags but those of plugin.h in " + name_of(backend),
               fmt::format("mask {}", backend.flags));
    rank.check(backend.tag_bits == 0 || (backend.tag_bits >= 16 && backend.tag_bits <= 64),
               "tag_bits of 0 or 16 to 64 in " + name_of(backend), std::to_string(backend.tag_bits));
    rank.check((backend.flags & BP_BACKEND_ONE_PROCESS) == 0 || (backend.flags & BP_BACKEND_THREADS) != 0,
               "BP_BACKEND_ONE_PROCESS only with BP_BACKEND_THREADS in " + name_of(backend),
               fmt::format("mask {}", backend.flags));
    for (uint32_t j = 0; j < backend.capability_count; ++j) {
      check_capability(rank, *backend.capabilities[j], fmt::format("capability {} of {}", j, name_of(backend)), later);
    }
  }
}

// Whether all that the row declares is also declared by the other row.
bool within(const bp_capability& row, const bp_capability& other) {
  return row.op == other.op && (row.dtypes & ~other.dtypes) == 0 && (row.reduce_ops & ~other.reduce_ops) == 0 &&
         (row.memory & ~other.memory) == 0;
}

void no_duplicate_capability(Rank& rank) {
  const bp_plugin& plugin = walkable(rank);
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend& backend = *plugin.backends[i];
    for (uint32_t j = 0; j < backend.capability_count; ++j) {
      for (uint32_t k = 0; k < backend.capability_count; ++k) {
        rank.check(j == k || !within(*backend.capabilities[j], *backend.capabilities[k]),
                   "rows of capabilities that each add something in " + name_of(backend),
                   fmt::format("row {} is a part of row {}", j, k));
      }
    }
  }
}

void reserved_zero(Rank& rank) {
  const bp_plugin& plugin = walkable(rank);
  if (newer(plugin))
    rank.skip("the plugin was built with later headers, which may have given reserved fields a meaning");
  bool zero = !BP_HAS(&plugin, reserved) || plugin.reserved == 0;
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    const bp_backend& backend = *plugin.backends[i];
    for (uint32_t j = 0; j < backend.option_count; ++j) zero = zero && backend.options[j]->reserved == 0;
  }
  rank.check(zero, "reserved fields are zero", "one is not");
}

std::string field_text(const char* field, size_t capacity) { return {field, strnlen(field, capacity)}; }

void compare_backend(Rank& rank, const bp_note_backend& note, const bp_backend& backend) {
  const auto same = [&rank, &backend](const char* what, const auto& in_note, const auto& in_code) {
    rank.check(in_note == in_code, fmt::format("the note of {} has {} {}", name_of(backend), what, in_code),
               fmt::to_string(in_note));
  };
  uint64_t ops = 0;
  for (uint32_t i = 0; i < backend.capability_count; ++i) {
    if (backend.capabilities[i]->op < 64) ops |= BP_BIT(backend.capabilities[i]->op);
  }
  same("the id", field_text(note.id, sizeof note.id), std::string(printable(backend.id) ? backend.id : ""));
  same("the version", field_text(note.version, sizeof note.version),
       std::string(printable(backend.version) ? backend.version : ""));
  rank.check(note.id[sizeof note.id - 1] == '\0' && note.version[sizeof note.version - 1] == '\0',
             "id and version end with a NUL in the note", "they do not");
  same("the kinds", note.kinds, backend.kinds);
  same("the flags", note.flags, backend.flags);
  same("the operations", note.ops | uint64_t{note.ops_high} << 32, ops);
}

void note_agrees_with_struct(Rank& rank) {
  const bp_plugin& plugin = walkable(rank);
  const ElfFile file = read_elf(rank.run().path);
  rank.require(file.notes.size() == 1, "one note in " BP_NOTE_SECTION, fmt::format("{} of them", file.notes.size()));
  const std::string& bytes = file.notes.front();
  constexpr size_t kHead = sizeof(bp_note_header) - offsetof(bp_note_header, magic);
  bp_note_header header = {};
  rank.require(bytes.size() >= kHead, fmt::format("a note of {} bytes at least", kHead), std::to_string(bytes.size()));
  std::memcpy(&header.magic, bytes.data(), kHead);
  const auto same = [&rank](const char* what, uint64_t in_note, uint64_t in_code) {
    rank.require(in_note == in_code, fmt::format("a note that has {} {}", what, in_code), fmt::to_string(in_note));
  };
  same("the magic number", header.magic, BP_MAGIC);
  same("the ABI major", header.abi_major, BP_ABI_MAJOR);
  same("the built minor", header.built_minor, plugin.built_minor);
  same("the needed minor", header.need_minor, plugin.need_minor);
  same("a number of backends of", header.backend_count, plugin.backend_count);
  rank.require(header.needs[sizeof header.needs - 1] == '\0', "needs that end with a NUL", "they do not");
  rank.require(plugin.backend_count <= BP_NOTE_MAX_BACKENDS, fmt::format("{} backends at most", BP_NOTE_MAX_BACKENDS),
               std::to_string(plugin.backend_count));
  rank.require(header.backend_size >= sizeof(bp_note_backend), "records of a bp_note_backend at least",
               fmt::format("{} bytes", header.backend_size));
  same("a size of", bytes.size(), kHead + uint64_t{header.backend_count} * header.backend_size);
  for (uint32_t i = 0; i < header.backend_count; ++i) {
    bp_note_backend record;
    std::memcpy(&record, bytes.data() + kHead + size_t{i} * header.backend_size, sizeof record);
    compare_backend(rank, record, *plugin.backends[i]);
  }
}

}  // namespace

std::vector<Case> contract_cases() {
  const Needs any = {.ops = 0};
  const Needs file = {.ops = 0, .file = true};
  const Execution bare = {.worlds = {1}, .deadline = 10 * kSecond, .loads = false};
  return {
      Case("magic-and-version", "bp_plugin has its magic number, and minors this core can serve", magic_and_version,
           any, bare),
      Case("nothing-null", "no table, entry or mandatory function is missing", nothing_null, any, bare),
      Case("struct-short", "no struct of the plugin is shorter than at minor 0", struct_short, any, bare),
      Case("ids-and-texts", "ids, versions, vendor and summaries are well-formed", ids_and_texts, any, bare),
      Case("masks-in-range", "kinds, flags, operations and their masks are those of the headers", masks_in_range, any,
           bare),
      Case("no-duplicate-capability", "no row of capabilities repeats another one", no_duplicate_capability, any, bare),
      Case("reserved-zero", "reserved fields are zero", reserved_zero, any, bare),
      Case("note-agrees-with-struct", "the note agrees with the descriptor", note_agrees_with_struct, file, bare),
  };
}

}  // namespace backplane::conformance::load
