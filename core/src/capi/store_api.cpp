// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "capi/handles.hpp"
#include "store/secret.hpp"

namespace backplane::core {
namespace {

Store& store_of(bp_store* handle) {
  if (handle == nullptr) fail(BP_INVALID, "`store` must be a bp_store. (null)");
  return *handle->store;
}

std::string_view bytes(const void* data, uint64_t size) {
  return size == 0 ? std::string_view() : std::string_view(static_cast<const char*>(data), size);
}

std::vector<std::string> list(const char* const* keys, uint64_t count) { return {keys, keys + count}; }

const char* or_empty(const char* text) { return text == nullptr ? "" : text; }

void hand_out(bp_store** handle, std::shared_ptr<Store> store) {
  *handle = new bp_store;
  (*handle)->store = std::move(store);
}

TcpStoreOptions tcp_options(const char* host, uint16_t port, const char* job_id) {
  if (host == nullptr) fail(BP_INVALID, "a host is needed, not NULL");
  TcpStoreOptions options;
  options.host = host;
  options.port = port;
  options.job_id = or_empty(job_id);
  options.secret = environment_secret();
  return options;
}

}  // namespace

char* copy_text(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace backplane::core

using namespace backplane::core;  // NOLINT: the functions of the C API stand outside

extern "C" {

void bp_free(void* text) { std::free(text); }

int32_t bp_store_server_start(const char* host, uint16_t port, const char* job_id, bp_store_server** server,
                              bp_error* err) {
  return guarded(err, [=] { *server = new bp_store_server{make_tcp_store_server(tcp_options(host, port, job_id))}; });
}
uint16_t bp_store_server_port(const bp_store_server* server) { return server->server->port(); }
void bp_store_server_release(bp_store_server* server) { delete server; }

int32_t bp_store_connect(const char* host, uint16_t port, const char* job_id, int64_t timeout_ns, bp_store** store,
                         bp_error* err) {
  return guarded(
      err, [=] { hand_out(store, make_tcp_store(tcp_options(host, port, job_id), Deadline::after(timeout_ns))); });
}
int32_t bp_store_open_file(const char* path, bp_store** store, bp_error* err) {
  return guarded(err, [=] { hand_out(store, make_file_store(or_empty(path))); });
}
int32_t bp_store_create_inproc(bp_store** store, bp_error* err) {
  return guarded(err, [=] { hand_out(store, make_inproc_store()); });
}
int32_t bp_store_create_prefix(bp_store* inner, const char* prefix, bp_store** store, bp_error* err) {
  return guarded(err, [=] {
    store_of(inner);
    hand_out(store, make_prefix_store(inner->store, or_empty(prefix)));
  });
}
void bp_store_release(bp_store* store) { delete store; }

int32_t bp_store_set(bp_store* store, const char* key, const void* value, uint64_t size, int64_t timeout_ns,
                     bp_error* err) {
  return guarded(err, [=] { store_of(store).set(key, bytes(value, size), Deadline::after(timeout_ns)); });
}
int32_t bp_store_get(bp_store* store, const char* key, char** value, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
  return guarded(err, [=] {
    const std::string found = store_of(store).get(key, Deadline::after(timeout_ns));
    *value = copy_text(found);
    *size = found.size();
  });
}
int32_t bp_store_add(bp_store* store, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns, bp_error* err) {
  return guarded(err, [=] { *sum = store_of(store).add(key, delta, Deadline::after(timeout_ns)); });
}
int32_t bp_store_wait(bp_store* store, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
  return guarded(err, [=] { store_of(store).wait(list(keys, count), Deadline::after(timeout_ns)); });
}
int32_t bp_store_check(bp_store* store, const char* const* keys, uint64_t count, int32_t* exist, int64_t timeout_ns,
                       bp_error* err) {
  return guarded(err, [=] { *exist = store_of(store).check(list(keys, count), Deadline::after(timeout_ns)) ? 1 : 0; });
}
int32_t bp_store_compare_set(bp_store* store, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, char** value, uint64_t* size,
                             int64_t timeout_ns, bp_error* err) {
  return guarded(err, [=] {
    const std::string found = store_of(store).compare_set(key, bytes(expected, expected_size),
                                                          bytes(desired, desired_size), Deadline::after(timeout_ns));
    *value = copy_text(found);
    *size = found.size();
  });
}
int32_t bp_store_delete(bp_store* store, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err) {
  return guarded(err, [=] {
    const bool there = store_of(store).remove(key, Deadline::after(timeout_ns));
    if (existed != nullptr) *existed = there ? 1 : 0;
  });
}
int32_t bp_store_num_keys(bp_store* store, int64_t* count, int64_t timeout_ns, bp_error* err) {
  return guarded(err, [=] { *count = store_of(store).num_keys(Deadline::after(timeout_ns)); });
}

}  // extern "C"
