// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "capi/handles.hpp"
#include "capi/world.hpp"
#include "group/objects.hpp"
#include "log.hpp"

namespace backplane::core {

bp_group* make_handle(const std::shared_ptr<Group>& group) {
  auto handle = std::make_unique<bp_group>();
  handle->group = group;
  handle->name = group->config().name;
  for (uint32_t memory = 0; memory < BP_MEMORY_COUNT; ++memory) handle->backends[memory] = group->backend_id(memory);
  group->add_handle();
  return handle.release();
}

namespace {

// What the caller gave, with a default for each field that it does not know.
bp_group_config complete(const bp_group_config* given) {
  constexpr size_t kFirstSize = offsetof(bp_group_config, timeout_ns) + sizeof given->timeout_ns;
  bp_group_config config;
  bp_group_config_init(&config);
  take_known(required(given, "config"), kFirstSize, "bp_group_config", &config);
  return config;
}

}  // namespace

Group& group_of(const bp_group* handle) { return *live(handle, "group").group; }

}  // namespace backplane::core

using namespace backplane::core;  // NOLINT: the functions of the C API stand outside

extern "C" {

int32_t bp_init_process_group(const bp_group_config* config, bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    const auto made = init_default(complete(config), group != nullptr);
    if (group != nullptr) *group = make_handle(made);
  });
}
int32_t bp_is_initialized(void) { return default_group() ? 1 : 0; }
int32_t bp_destroy_process_group(bp_error* err) {
  return guarded(err, [] { destroy_default(); });
}
int32_t bp_default_group(bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    required(group, "group");
    const auto found = default_group();
    if (!found) fail(BP_INVALID, "the default process group has not been initialized; call init_process_group first");
    *group = make_handle(found);
  });
}

int32_t bp_group_create(const bp_group_config* config, bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    required(group, "group");
    *group = make_handle(create_group(complete(config)));
  });
}
int32_t bp_init_backend(const bp_backend_type* type, bp_store* store, const char* name, int32_t rank,
                        int32_t world_size, const bp_backend_options* options, int64_t timeout_ns, bp_group** group,
                        bp_error* err) {
  return guarded(err, [=] {
    required(group, "group");
    const auto& chosen = live(options, "options").options;
    *group = make_handle(init_backend(member_of(type), store, name, rank, world_size, chosen, timeout_ns));
  });
}
int32_t bp_group_new(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name, int64_t timeout_ns,
                     bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    required(group, "group");
    const auto [begin, end] = list_of(ranks, count, "ranks");
    *group = make_handle(group_of(parent).new_group({begin, end}, name == nullptr ? "" : name, timeout_ns));
  });
}
int32_t bp_group_with_backend(bp_group* parent, const char* backend, int64_t timeout_ns, bp_group** group,
                              bp_error* err) {
  return guarded(err, [=] {
    required(group, "group");
    *group = make_handle(group_with_backend(group_of(parent), backend, timeout_ns));
  });
}
int32_t bp_group_split(bp_group* parent, int64_t color, int64_t key, bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    required(group, "group");
    *group = make_handle(group_of(parent).split(color, key));
  });
}
int32_t bp_group_shrink(bp_group* group, int64_t timeout_ns, bp_group** shrunk, bp_error* err) {
  return guarded(err, [=] {
    required(shrunk, "shrunk");
    *shrunk = make_handle(group_of(group).shrink(timeout_ns));
  });
}
int32_t bp_group_destroy(bp_group* group, bp_error* err) {
  return guarded(err, [=] {
    group_of(group);
    end_group(group->group);
  });
}
int32_t bp_group_abort(bp_group* group, const char* why, bp_error* err) {
  return guarded(err,
                 [=] { group_of(group).abort(Error(BP_CANCELLED, why == nullptr ? "aborted by this rank" : why)); });
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

int32_t bp_group_run(bp_group* group, const bp_op* op, bp_error* err) {
  return guarded(err, [=] { group_of(group).run(required(op, "op")); });
}
int32_t bp_group_submit(bp_group* group, const bp_op* op, bp_request** request, bp_error* err) {
  return bp_group_submit_batch(group, &op, 1, request, err);
}
int32_t bp_group_submit_batch(bp_group* group, const bp_op* const* ops, uint64_t count, bp_request** requests,
                              bp_error* err) {
  return guarded(err, [=] {
    Group& target = group_of(group);
    const auto [begin, end] = list_of(ops, count, "ops");
    std::for_each(begin, end, [](const bp_op* op) { required(op, "op"); });
    if (count > 0) required(requests, "requests");
    const auto started = target.submit(ops, count);
    for (uint64_t i = 0; i < count; ++i) requests[i] = new_handle<bp_request>(started[i]);
  });
}
int32_t bp_request_test(bp_request* request, bp_error* err) {
  bool done = false;
  const int32_t status = guarded(err, [request, &done] { done = live(request, "request").request->test(); });
  return status == BP_OK && !done ? BP_AGAIN : status;
}
int32_t bp_request_wait(bp_request* request, int64_t timeout_ns, bp_error* err) {
  bool done = false;
  const int32_t status =
      guarded(err, [=, &done] { done = live(request, "request").request->wait(Deadline::after(timeout_ns)); });
  return status == BP_OK && !done ? BP_AGAIN : status;
}
int32_t bp_request_wait_on_stream(bp_request* request, void* stream, bp_error* err) {
  return guarded(err, [=] { live(request, "request").request->wait_on_stream(stream); });
}
void bp_request_result(bp_request* request, bp_result* result) {
  if (result == nullptr) return;
  const bp_result received = is_live(request) ? request->request->result() : bp_result{sizeof(bp_result), -1, 0, 0};
  result->source = received.source;
  result->bytes = received.bytes;
}
void bp_request_cancel(bp_request* request) {
  guarded(nullptr, [request] { live(request, "request").request->cancel(); });
}
void bp_request_release(bp_request* request) { release(request); }

int32_t bp_group_allocate(bp_group* group, uint64_t bytes, uint32_t memory, int32_t device, bp_memory** result,
                          bp_error* err) {
  return guarded(err, [=] {
    required(result, "result");
    *result = new_handle<bp_memory>(group_of(group).allocate(bytes, memory, device));
  });
}
void* bp_memory_data(const bp_memory* memory) { return is_live(memory) ? memory->memory->data() : nullptr; }
int32_t bp_memory_native(const bp_memory* memory) { return is_live(memory) && memory->memory->native() ? 1 : 0; }
void bp_memory_release(bp_memory* memory) { release(memory); }

int32_t bp_group_exchange_objects(bp_group* group, uint32_t kind, int32_t root, const void* const* in,
                                  const uint64_t* in_sizes, uint64_t in_count, int64_t timeout_ns, bp_objects** out,
                                  bp_error* err) {
  return guarded(err, [=] {
    required(out, "out");
    Group& target = group_of(group);
    list_of(in, in_count, "in");
    list_of(in_sizes, in_count, "in_sizes");
    std::vector<std::string_view> objects;
    for (uint64_t i = 0; i < in_count; ++i) {
      if (in_sizes[i] > 0) required(static_cast<const char*>(in[i]), "in[i]");
      objects.push_back(in_sizes[i] == 0 ? std::string_view()
                                         : std::string_view(static_cast<const char*>(in[i]), in_sizes[i]));
    }
    *out = new_handle<bp_objects>(exchange_objects(target, kind, root, objects, timeout_ns));
  });
}
uint64_t bp_objects_count(const bp_objects* objects) { return is_live(objects) ? objects->objects.size() : 0; }
const void* bp_objects_get(const bp_objects* objects, uint64_t i, uint64_t* size) {
  const bool is_there = i < bp_objects_count(objects);
  if (size != nullptr) *size = is_there ? objects->objects[i].size() : 0;
  return is_there ? objects->objects[i].data() : nullptr;
}
void bp_objects_release(bp_objects* objects) { release(objects); }

int32_t bp_store_trace(bp_store* store, const char* group, int64_t timeout_ns, char** json, bp_error* err) {
  return guarded(err, [=] {
    hand_out(json, "json", [=] { return copy_text(trace_job(live(store, "store"), group, timeout_ns)); });
  });
}
int32_t bp_group_trace(bp_group* group, char** json, bp_error* err) {
  return guarded(err, [=] { hand_out(json, "json", [=] { return copy_text(group_of(group).trace_json()); }); });
}
void bp_set_log(void (*log)(void* ctx, uint32_t level, const char* text), void* ctx) { set_log(log, ctx); }

}  // extern "C"
