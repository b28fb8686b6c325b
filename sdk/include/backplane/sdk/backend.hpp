// SPDX-License-Identifier: Apache-2.0
//
// From a class to a plugin. An author describes a backend as a struct of constants and two functions:
//
//     struct Acme {
//       static constexpr const char* id = "acme";          // [a-z0-9_-]{1,32}; the file is backplane_acme.so
//       static constexpr const char* version = "1.0";      // at most 23 bytes
//       static constexpr const char* summary = "Acme fabric";
//       static constexpr uint32_t kinds = BP_KIND_PROCESS_GROUP;
//       static constexpr uint32_t flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_AUTONOMOUS;
//       static constexpr std::array options = {sdk::option({...}), ...};        // or std::array<bp_option, 0>
//       static constexpr std::array capabilities = {sdk::moves(BP_SEND), sdk::moves(BP_RECV)};
//       static std::unique_ptr<sdk::ProcessGroup> init(const sdk::Context& context);
//       static void probe(const sdk::Host& host);          // optional: throws Failure(BP_UNSUPPORTED, reason)
//       static constexpr const char* needs = "backplane.rpc/1";  // optional: extensions of the core, see abi/note.h
//       static constexpr uint32_t tag_bits = 31;           // optional: bits of a tag that are matched, if not 64
//       static void finalize();                            // optional: ends the library below when the process ends
//     };
//     BACKPLANE_PLUGIN("Acme Inc.", Acme)
//
// and builds it with backplane_add_plugin(). Sizes, versions, the ELF note and the export come from here.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "process_group.hpp"

namespace backplane::sdk {

// Operation `op`, which does not reduce, is native for these element types and memory kinds.
constexpr bp_capability moves(uint32_t op, uint64_t dtypes = BP_ALL_DTYPES, uint64_t memory = BP_BIT(BP_HOST)) {
  return {sizeof(bp_capability), op, op == BP_BARRIER ? 0 : dtypes, 0, op == BP_BARRIER ? 0 : memory};
}
// Operation `op` is native for these element types, reduce operations and memory kinds.
constexpr bp_capability reduces(uint32_t op, uint64_t dtypes, uint64_t reduce_ops, uint64_t memory = BP_BIT(BP_HOST)) {
  return {sizeof(bp_capability), op, dtypes, reduce_ops, memory};
}

// {&list[0], &list[1], ...}: the ABI takes arrays of pointers. At least one element: C++ has no empty arrays.
template <typename T, size_t N>
constexpr std::array<const T*, N == 0 ? 1 : N> pointers(const std::array<T, N>& list) {
  std::array<const T*, N == 0 ? 1 : N> result{};
  for (size_t i = 0; i < N; ++i) result[i] = &list[i];
  return result;
}

namespace detail {

template <typename Description>
int32_t probe(const bp_backend*, const bp_host* host, bp_error* err) {
  return guarded(err, [&host] {
    const Host offered(host);
    if constexpr (requires { Description::probe(offered); }) Description::probe(offered);
    return BP_OK;
  });
}

// Throws BP_INVALID unless the rank is below the world size. Call it before sizes are computed from these numbers.
inline void require_valid_rank(const bp_init& init) {
  if (init.world_size >= 1 && init.rank >= 0 && init.rank < init.world_size) return;
  throw Failure(BP_INVALID, "rank " + std::to_string(init.rank) + " is not in a world of " +
                                std::to_string(init.world_size) + "; ranks count from 0 to world_size - 1");
}

template <typename Description>
int32_t init(const bp_backend*, const bp_init* init, bp_agent* agent, bp_error* err) {
  return guarded(err, [init, agent] {
    require_valid_rank(*init);
    std::unique_ptr<ProcessGroup> group = Description::init(Context(*init));
    if (!group) throw Failure(BP_INTERNAL, std::string("the init of backend ") + Description::id + " made no group");
    agent->kind = BP_KIND_PROCESS_GROUP;
    agent->api = &kProcessGroupApi;
    agent->rank = init->rank;
    agent->world_size = init->world_size;
    const std::span<const bp_capability* const> less = group->capabilities();
    if (!less.empty()) {
      agent->capabilities = less.data();
      agent->capability_count = static_cast<uint32_t>(less.size());
    }
    agent->self = group.release();
    return BP_OK;
  });
}

template <typename Description>
constexpr uint32_t tag_bits() {
  if constexpr (requires { Description::tag_bits; }) return Description::tag_bits;
  return 0;
}

template <typename Description>
constexpr auto finalize() -> void (*)(const bp_backend*) {
  if constexpr (requires { Description::finalize(); }) return [](const bp_backend*) { Description::finalize(); };
  return nullptr;
}

template <typename Description>
struct GroupTables {
  static constexpr auto options = pointers(Description::options);
  static constexpr auto capabilities = pointers(Description::capabilities);
  static constexpr bp_backend backend = {
      sizeof(bp_backend),
      Description::kinds,
      Description::flags,
      static_cast<uint32_t>(Description::options.size()),
      Description::id,
      Description::version,
      Description::summary,
      options.data(),
      capabilities.data(),
      static_cast<uint32_t>(Description::capabilities.size()),
      tag_bits<Description>(),
      &probe<Description>,
      nullptr,
      nullptr,
      &init<Description>,
      finalize<Description>(),
  };
};

// The init function of any backend; rpc.hpp has the one of backends that also make RPC agents.
template <typename Description>
struct Tables : GroupTables<Description> {};

template <size_t N>
constexpr void copy_text(char (&target)[N], const char* text) {
  size_t i = 0;
  for (; text[i] != '\0'; ++i) {
    if (i + 1 >= N) throw "this text is too long for the plugin note";  // a compile error: only evaluated as constexpr
    target[i] = text[i];
  }
}

template <typename Description>
constexpr bp_note_backend note_backend() {
  bp_note_backend record{};
  copy_text(record.id, Description::id);
  copy_text(record.version, Description::version);
  record.kinds = Description::kinds;
  record.flags = Description::flags;
  for (const bp_capability& capability : Description::capabilities)
    record.ops |= static_cast<uint32_t>(BP_BIT(capability.op));
  return record;
}

// Appends the ids that a backend needs to those of the previous backends.
template <typename Description>
constexpr void add_needs(bp_note_header& header) {
  if constexpr (requires { Description::needs; }) {
    size_t end = 0;
    while (header.needs[end] != '\0') ++end;
    if (end > 0) header.needs[end++] = ' ';
    for (const char* id = Description::needs; *id != '\0'; ++id, ++end) {
      if (end + 1 >= sizeof header.needs) throw "these ids are too long for the plugin note";  // a compile error
      header.needs[end] = *id;
    }
  }
}

template <size_t N>
struct Note {
  bp_note_header header;
  bp_note_backend backends[N];
};

template <typename... Descriptions>
constexpr Note<sizeof...(Descriptions)> note() {
  Note<sizeof...(Descriptions)> made = {BP_NOTE_HEADER_INIT(sizeof...(Descriptions), 0, ""),
                                        {note_backend<Descriptions>()...}};
  (add_needs<Descriptions>(made.header), ...);
  return made;
}

template <typename... Descriptions>
struct PluginTables {
  static constexpr std::array<const bp_backend*, sizeof...(Descriptions)> backends = {
      &Tables<Descriptions>::backend...};
};

template <typename... Descriptions>
constexpr bp_plugin plugin(const char* vendor) {
  return {sizeof(bp_plugin),       BP_MAGIC, BP_ABI_MINOR, 0, vendor, PluginTables<Descriptions...>::backends.data(),
          sizeof...(Descriptions), 0};
}

}  // namespace detail
}  // namespace backplane::sdk

// The entry point of a plugin. backplane_add_plugin(... BUILTIN) renames the symbol and omits the note, which makes the
// same source a part of the core.
#ifdef BACKPLANE_BUILTIN_ENTRY
#define BACKPLANE_PLUGIN(vendor, ...)                 \
  extern "C" const bp_plugin BACKPLANE_BUILTIN_ENTRY; \
  extern "C" constinit const bp_plugin BACKPLANE_BUILTIN_ENTRY = ::backplane::sdk::detail::plugin<__VA_ARGS__>(vendor);
#else
#define BACKPLANE_PLUGIN(vendor, ...)                                                                       \
  __attribute__((section(BP_NOTE_SECTION), used, aligned(4))) static constexpr auto backplane_plugin_note = \
      ::backplane::sdk::detail::note<__VA_ARGS__>();                                                        \
  extern "C" BP_EXPORT const bp_plugin bp_plugin_v1;                                                        \
  extern "C" constinit const bp_plugin bp_plugin_v1 = ::backplane::sdk::detail::plugin<__VA_ARGS__>(vendor);
#endif
