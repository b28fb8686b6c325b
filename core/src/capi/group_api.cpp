// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "capi/default_group.hpp"
#include "capi/handles.hpp"
#include "capi/job.hpp"
#include "log.hpp"

namespace backplane::core {

bp_group* make_handle(const std::shared_ptr<Group>& group) {
  auto handle = std::make_unique<bp_group>();
  handle->group = group;
  handle->name = group->config().name;
  for (uint32_t memory = 0; memory < BP_MEMORY_COUNT; ++memory)
    handle->backends[memory] = backend_id(group->config(), memory);
  group->state().add_handle();
  return handle.release();
}

namespace {

// The caller's configuration, with defaults for the fields that it lacks.
bp_group_config complete(const bp_group_config* given) {
  constexpr size_t kFirstSize = offsetof(bp_group_config, timeout_ns) + sizeof given->timeout_ns;
  bp_group_config config;
  bp_group_config_init(&config);
  take_known(required(given, "config"), kFirstSize, "bp_group_config", &config);
  return config;
}

}  // namespace

Group& group_of(const bp_group* handle) { return *live(handle, "group").group; }

void name_group(bp_error* err, const std::string& name) {
  if (err == nullptr || !BP_HAS(err, group)) return;
  size_t size = std::min<size_t>(name.size(), BP_ERROR_GROUP_SIZE - 1);
  while (size > 0 && size < name.size() && (static_cast<unsigned char>(name[size]) & 0xC0U) == 0x80U) --size;
  name.copy(err->group, size);
  err->group[size] = '\0';
}

}  // namespace backplane::core

using namespace backplane::core;  // NOLINT: the C API is outside the namespace

extern "C" {

int32_t bp_init_process_group(const bp_group_config* config, bp_group** group, bp_error* err) {
  return api_call(err, [=] {
    const auto made = init_default(complete(config), group != nullptr);
    if (group != nullptr) *group = make_handle(made);
  });
}
int32_t bp_is_initialized(void) { return default_group() ? 1 : 0; }
int32_t bp_destroy_process_group(bp_error* err) {
  return api_call(err, [] { destroy_default(); });
}
int32_t bp_default_group(bp_group** group, bp_error* err) {
  return api_call(err, [=] {
    required(group, "group");
    const auto found = default_group();
    if (!found) refuse_default("the default process group has not been initialized; call init_process_group first");
    *group = make_handle(found);
  });
}

int32_t bp_group_create(const bp_group_config* config, bp_group** group, bp_error* err) {
  return api_call(err, [=] {
    required(group, "group");
    *group = make_handle(create_group(complete(config)));
  });
}
int32_t bp_init_backend(const bp_backend_type* type, bp_store* store, const char* name, int32_t rank,
                        int32_t world_size, const bp_backend_options* options, int64_t timeout_ns, bp_group** group,
                        bp_error* err) {
  return api_call(err, [=] {
    required(group, "group");
    const auto& chosen = live(options, "options").options;
    *group = make_handle(init_backend(member_of(type), store, name, rank, world_size, chosen, timeout_ns));
  });
}
int32_t bp_group_new(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name, int64_t timeout_ns,
                     bp_group** group, bp_error* err) {
  return group_call(parent, err, [=] {
    required(group, "group");
    const auto [begin, end] = list_of(ranks, count, "ranks");
    *group = make_handle(group_of(parent).subgroups().new_group({begin, end}, name == nullptr ? "" : name, timeout_ns));
  });
}
int32_t bp_group_with_backend(bp_group* parent, const char* backend, int64_t timeout_ns, bp_group** group,
                              bp_error* err) {
  return group_call(parent, err, [=] {
    required(group, "group");
    *group = make_handle(group_with_backend(group_of(parent), backend, timeout_ns));
  });
}
int32_t bp_group_new_by_members(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name,
                                int64_t timeout_ns, bp_group** group, bp_error* err) {
  return group_call(parent, err, [=] {
    required(group, "group");
    const auto [begin, end] = list_of(ranks, count, "ranks");
    *group = make_handle(
        group_of(parent).subgroups().new_group_by_members({begin, end}, name == nullptr ? "" : name, timeout_ns));
  });
}
int32_t bp_group_split(bp_group* parent, int64_t color, int64_t key, bp_group** group, bp_error* err) {
  return group_call(parent, err, [=] {
    required(group, "group");
    *group = make_handle(group_of(parent).subgroups().split(color, key));
  });
}
int32_t bp_group_shrink(bp_group* group, int64_t timeout_ns, bp_group** shrunk, bp_error* err) {
  return group_call(group, err, [=] {
    required(shrunk, "shrunk");
    *shrunk = make_handle(group_of(group).subgroups().shrink(timeout_ns));
  });
}
int32_t bp_group_grow(bp_group* group, bp_store* store, int64_t timeout_ns, bp_group** grown, bp_error* err) {
  return group_call(group, err, [=] {
    required(grown, "grown");
    *grown = make_handle(group_of(group).subgroups().grow(live(store, "store").store, timeout_ns));
  });
}
int32_t bp_group_join(const bp_group_config* config, int64_t timeout_ns, bp_group** group, bp_error* err) {
  return api_call(err, [=] {
    required(group, "group");
    *group = make_handle(join_group(complete(config), timeout_ns));
  });
}
int32_t bp_store_newcomers(bp_store* store, int64_t* count, int64_t timeout_ns, bp_error* err) {
  return api_call(err, [=] {
    required(count, "count");
    const Deadline deadline = Deadline::after(timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS));
    *count = Newcomers(live(store, "store").store).count(deadline);
  });
}
int32_t bp_group_destroy(bp_group* group, bp_error* err) {
  return group_call(group, err, [=] {
    group_of(group);
    end_group(group->group);
  });
}
int32_t bp_group_abort(bp_group* group, const char* why, bp_error* err) {
  return group_call(group, err, [=] {
    group_of(group).failures().abort(Error(BP_CANCELLED, why == nullptr ? "aborted by this rank" : why));
  });
}
bp_group* bp_group_retain(bp_group* group) {
  bp_group* handle = nullptr;
  guarded(nullptr, [&handle, group] {
    group_of(group);
    handle = make_handle(group->group);
  });
  return handle;
}
void bp_group_release(bp_group* group) {
  if (!is_live(group)) return;
  const std::unique_ptr<bp_group> handle(group);
  guarded(nullptr, [&handle] { handle->group->drop_handle(); });
}

int32_t bp_group_rank(const bp_group* group) { return is_live(group) ? group->group->config().rank : -1; }
int32_t bp_group_world_size(const bp_group* group) { return is_live(group) ? group->group->config().world_size : -1; }
const char* bp_group_name(const bp_group* group) { return is_live(group) ? group->name.c_str() : nullptr; }
const char* bp_group_backend(const bp_group* group, uint32_t memory) {
  if (!is_live(group) || memory >= BP_MEMORY_COUNT || group->backends[memory].empty()) return nullptr;
  return group->backends[memory].c_str();
}
int32_t bp_group_global_rank(const bp_group* group, int32_t rank) {
  if (!is_live(group)) return -1;
  const auto& ranks = group->group->config().global_ranks;
  return rank < 0 || static_cast<size_t>(rank) >= ranks.size() ? -1 : ranks[static_cast<size_t>(rank)];
}

int32_t bp_group_status(bp_group* group, bp_error* err) {
  return group_call(group, err, [=] { group_of(group).state().check_active(); });
}
const void* bp_group_extension(bp_group* group, uint32_t memory, const char* id) {
  const void* table = nullptr;
  guarded(nullptr, [&] { table = backend_extension(group_of(group), memory, &required(id, "id")); });
  return table;
}
int32_t bp_group_allocate(bp_group* group, uint64_t bytes, uint32_t memory, int32_t device, bp_memory** result,
                          bp_error* err) {
  return group_call(group, err, [=] {
    required(result, "result");
    *result = new_handle<bp_memory>(allocate(group_of(group), bytes, memory, device));
  });
}
int32_t bp_group_register(bp_group* group, void* data, uint64_t bytes, uint32_t memory, int32_t device,
                          bp_memory** result, bp_error* err) {
  return group_call(group, err, [=] {
    required(result, "result");
    if (bytes > 0) required(static_cast<char*>(data), "data");
    *result = new_handle<bp_memory>(register_memory(group_of(group), data, bytes, memory, device));
  });
}
void* bp_memory_data(const bp_memory* memory) { return is_live(memory) ? memory->memory->data() : nullptr; }
int32_t bp_memory_native(const bp_memory* memory) { return is_live(memory) && memory->memory->native() ? 1 : 0; }
void bp_memory_release(bp_memory* memory) { release(memory); }

int32_t bp_store_trace(bp_store* store, const char* group, int64_t timeout_ns, char** json, bp_error* err) {
  return api_call(err, [=] {
    store_result(json, "json", [=] { return copy_text(trace_job(live(store, "store"), group, timeout_ns)); });
  });
}
int32_t bp_group_trace(bp_group* group, char** json, bp_error* err) {
  return group_call(group, err,
                    [=] { store_result(json, "json", [=] { return copy_text(group_of(group).trace().json()); }); });
}
void bp_set_interrupt_hook(int32_t (*interrupted)(void* ctx), void* ctx) { set_interrupt_hook(interrupted, ctx); }
int32_t bp_interrupted(void) { return Interruptible::hook_interrupts() ? 1 : 0; }
void bp_set_log(void (*log)(void* ctx, uint32_t level, const char* text), void* ctx) { set_log(log, ctx); }

}  // extern "C"
