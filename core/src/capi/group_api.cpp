// SPDX-License-Identifier: Apache-2.0
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

Group& group_of(const bp_group* handle) {
  if (handle == nullptr) fail(BP_INVALID, "a group is needed, not NULL");
  return *handle->group;
}

}  // namespace backplane::core

using namespace backplane::core;  // NOLINT: the functions of the C API stand outside

extern "C" {

int32_t bp_init_process_group(const bp_group_config* config, bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    if (config == nullptr) fail(BP_INVALID, "a bp_group_config is needed, not NULL");
    const auto made = init_default(*config, group != nullptr);
    if (group != nullptr) *group = make_handle(made);
  });
}
int32_t bp_is_initialized(void) { return default_group() ? 1 : 0; }
int32_t bp_destroy_process_group(bp_error* err) {
  return guarded(err, [] { destroy_default(); });
}
int32_t bp_default_group(bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    const auto found = default_group();
    if (!found) fail(BP_INVALID, "the default process group has not been initialized; call init_process_group first");
    *group = make_handle(found);
  });
}

int32_t bp_group_create(const bp_group_config* config, bp_group** group, bp_error* err) {
  return guarded(err, [=] { *group = make_handle(create_group(*config)); });
}
int32_t bp_init_backend(const bp_backend_type* type, bp_store* store, const char* name, int32_t rank,
                        int32_t world_size, const bp_backend_options* options, int64_t timeout_ns, bp_group** group,
                        bp_error* err) {
  return guarded(err, [=] {
    if (options == nullptr) fail(BP_INVALID, "`options` must be backend options. (null)");
    *group = make_handle(init_backend(member_of(type), store, name, rank, world_size, options->options, timeout_ns));
  });
}
int32_t bp_group_new(bp_group* parent, const int32_t* ranks, uint64_t count, const char* name, int64_t timeout_ns,
                     bp_group** group, bp_error* err) {
  return guarded(err, [=] {
    *group = make_handle(group_of(parent).new_group({ranks, ranks + count}, name == nullptr ? "" : name, timeout_ns));
  });
}
int32_t bp_group_over(bp_group* parent, const char* backend, int64_t timeout_ns, bp_group** group, bp_error* err) {
  return guarded(err, [=] { *group = make_handle(group_over(group_of(parent), backend, timeout_ns)); });
}
int32_t bp_group_split(bp_group* parent, int64_t color, int64_t key, bp_group** group, bp_error* err) {
  return guarded(err, [=] { *group = make_handle(group_of(parent).split(color, key)); });
}
int32_t bp_group_shrink(bp_group* group, int64_t timeout_ns, bp_group** shrunk, bp_error* err) {
  return guarded(err, [=] {
    if (shrunk == nullptr) fail(BP_INVALID, "a place for the new group is needed, not NULL");
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
  if (group == nullptr) return;
  const std::unique_ptr<bp_group> handle(group);
  guarded(nullptr, [&handle] { handle->group->drop_handle(); });
}

int32_t bp_group_rank(const bp_group* group) { return group->group->config().rank; }
int32_t bp_group_world_size(const bp_group* group) { return group->group->config().world_size; }
const char* bp_group_name(const bp_group* group) { return group->name.c_str(); }
const char* bp_group_backend(const bp_group* group, uint32_t memory) {
  if (memory >= BP_MEMORY_COUNT || group->backends[memory].empty()) return nullptr;
  return group->backends[memory].c_str();
}
int32_t bp_group_global_rank(const bp_group* group, int32_t rank) {
  const auto& ranks = group->group->config().global_ranks;
  return rank < 0 || static_cast<size_t>(rank) >= ranks.size() ? -1 : ranks[static_cast<size_t>(rank)];
}

int32_t bp_group_run(bp_group* group, const bp_op* op, bp_error* err) {
  return guarded(err, [=] {
    Group& target = group_of(group);
    if (op == nullptr) fail(BP_INVALID, "a bp_op is needed, not NULL");
    target.run(*op);
  });
}
int32_t bp_group_submit(bp_group* group, const bp_op* op, bp_request** request, bp_error* err) {
  return bp_group_submit_batch(group, &op, 1, request, err);
}
int32_t bp_group_submit_batch(bp_group* group, const bp_op* const* ops, uint64_t count, bp_request** requests,
                              bp_error* err) {
  return guarded(err, [=] {
    const auto started = group_of(group).submit(ops, count);
    for (uint64_t i = 0; i < count; ++i) requests[i] = new bp_request{started[i]};
  });
}
int32_t bp_request_test(bp_request* request, bp_error* err) {
  bool done = false;
  const int32_t status = guarded(err, [request, &done] { done = request->request->test(); });
  return status == BP_OK && !done ? BP_AGAIN : status;
}
int32_t bp_request_wait(bp_request* request, int64_t timeout_ns, bp_error* err) {
  bool done = false;
  const int32_t status = guarded(err, [=, &done] { done = request->request->wait(Deadline::after(timeout_ns)); });
  return status == BP_OK && !done ? BP_AGAIN : status;
}
int32_t bp_request_order(bp_request* request, void* stream, bp_error* err) {
  return guarded(err, [=] { request->request->order(stream); });
}
void bp_request_result(bp_request* request, bp_result* result) {
  const bp_result received = request->request->result();
  result->source = received.source;
  result->bytes = received.bytes;
}
void bp_request_cancel(bp_request* request) {
  guarded(nullptr, [request] { request->request->cancel(); });
}
void bp_request_release(bp_request* request) { delete request; }

int32_t bp_group_allocate(bp_group* group, uint64_t bytes, uint32_t memory, int32_t device, bp_memory** result,
                          bp_error* err) {
  return guarded(err, [=] {
    if (result == nullptr) fail(BP_INVALID, "a place for the memory is needed, not NULL");
    *result = new bp_memory{group_of(group).allocate(bytes, memory, device)};
  });
}
void* bp_memory_data(const bp_memory* memory) { return memory->memory->data(); }
int32_t bp_memory_native(const bp_memory* memory) { return memory->memory->native() ? 1 : 0; }
void bp_memory_release(bp_memory* memory) { delete memory; }

int32_t bp_group_exchange_objects(bp_group* group, uint32_t kind, int32_t root, const void* const* in,
                                  const uint64_t* in_sizes, uint64_t in_count, int64_t timeout_ns, bp_objects** out,
                                  bp_error* err) {
  return guarded(err, [=] {
    std::vector<std::string_view> objects;
    for (uint64_t i = 0; i < in_count; ++i) {
      objects.push_back(in_sizes[i] == 0 ? std::string_view()
                                         : std::string_view(static_cast<const char*>(in[i]), in_sizes[i]));
    }
    *out = new bp_objects{exchange_objects(group_of(group), kind, root, objects, timeout_ns)};
  });
}
uint64_t bp_objects_count(const bp_objects* objects) { return objects->objects.size(); }
const void* bp_objects_get(const bp_objects* objects, uint64_t i, uint64_t* size) {
  *size = objects->objects[i].size();
  return objects->objects[i].data();
}
void bp_objects_release(bp_objects* objects) { delete objects; }

int32_t bp_store_trace(bp_store* store, const char* group, int64_t timeout_ns, char** json, bp_error* err) {
  return guarded(err, [=] { *json = copy_text(trace_job(*store, group, timeout_ns)); });
}
int32_t bp_group_trace(bp_group* group, char** json, bp_error* err) {
  return guarded(err, [=] { *json = copy_text(group_of(group).trace_json()); });
}
void bp_set_log(void (*log)(void* ctx, uint32_t level, const char* text), void* ctx) { set_log(log, ctx); }

}  // extern "C"
