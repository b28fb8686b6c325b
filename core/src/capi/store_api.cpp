// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "capi/handles.hpp"
#include "rendezvous/rendezvous.hpp"
#include "security/secret.hpp"
#include "store/callbacks.hpp"
#include "store/tcp_address.hpp"

namespace backplane::core {
namespace {

Store& store_of(bp_store* handle) {
  if (handle == nullptr) fail(BP_INVALID, "`store` must be a bp_store. (null)");
  return *live(handle, "store").store;
}

std::string_view bytes(const void* data, uint64_t size, const char* name) {
  constexpr uint64_t kMostBytes = UINT64_C(64) << 20;
  if (size == 0) return {};
  if (size > kMostBytes) fail(BP_INVALID, "`{}` has {} bytes; a value has at most {}", name, size, kMostBytes);
  return {static_cast<const char*>(&required(static_cast<const char*>(data), name)), size};
}

std::string key_of(const char* key) { return &required(key, "key"); }

std::vector<std::string> list(const char* const* keys, uint64_t count) {
  std::vector<std::string> all;
  const auto [begin, end] = list_of(keys, count, "keys");
  std::for_each(begin, end, [&all](const char* key) { all.push_back(key_of(key)); });
  return all;
}

const char* or_empty(const char* text) { return text == nullptr ? "" : text; }

// The caller's callbacks, with defaults for the fields that it lacks.
bp_store_callbacks complete(const bp_store_callbacks* given) {
  constexpr size_t kFirstSize = offsetof(bp_store_callbacks, release) + sizeof given->release;
  bp_store_callbacks callbacks;
  bp_store_callbacks_init(&callbacks);
  take_known(required(given, "callbacks"), kFirstSize, "bp_store_callbacks", &callbacks);
  required(callbacks.set, "callbacks->set");
  required(callbacks.get, "callbacks->get");
  required(callbacks.add, "callbacks->add");
  required(callbacks.compare_set, "callbacks->compare_set");
  required(callbacks.delete_key, "callbacks->delete_key");
  return callbacks;
}

template <typename Make>
void hand_out_store(bp_store** store, Make&& make) {
  store_result(store, "store", [&make] {
    auto handle = std::make_unique<bp_store>();
    handle->store = make();
    return handle.release();
  });
}

// A value of the store, for bp_free.
void hand_out_value(char** value, uint64_t* size, const std::string& found) {
  *value = copy_text(found);
  if (size != nullptr) *size = found.size();
}

Deadline deadline_of(int64_t timeout_ns) { return Deadline::after(timeout_or(timeout_ns, BP_DEFAULT_TIMEOUT_NS)); }

TcpStoreOptions tcp_options(const char* host, uint16_t port, const char* job_id) {
  TcpStoreOptions options;
  options.host = &required(host, "host");
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

using namespace backplane::core;  // NOLINT: the C API is outside the namespace

extern "C" {

void bp_free(void* text) { std::free(text); }

int32_t bp_store_server_start(const char* host, uint16_t port, const char* job_id, bp_store_server** server,
                              bp_error* err) {
  return api_call(err, [=] {
    store_result(server, "server", [=] {
      TcpStoreOptions options = tcp_options(host, port, job_id);
      if (options.host == "auto") options.host = reachable_address();
      auto made = make_tcp_store_server(options);
      std::string address = made->address();
      return new_handle<bp_store_server>(std::move(made), std::move(address));
    });
  });
}
uint16_t bp_store_server_port(const bp_store_server* server) { return is_live(server) ? server->server->port() : 0; }
const char* bp_store_server_address(const bp_store_server* server) {
  return is_live(server) ? server->address.c_str() : nullptr;
}
int32_t bp_store_server_wait(bp_store_server* server, int64_t timeout_ns, bp_error* err) {
  return api_call(err, [=] { live(server, "server").server->wait(deadline_of(timeout_ns)); });
}
void bp_store_server_release(bp_store_server* server) { release(server); }

int32_t bp_store_connect(const char* host, uint16_t port, const char* job_id, int64_t timeout_ns, bp_store** store,
                         bp_error* err) {
  return api_call(err, [=] {
    hand_out_store(store, [=] { return make_tcp_store(tcp_options(host, port, job_id), deadline_of(timeout_ns)); });
  });
}
int32_t bp_store_open_file(const char* path, bp_store** store, bp_error* err) {
  return api_call(err, [=] { hand_out_store(store, [=] { return make_file_store(or_empty(path)); }); });
}
int32_t bp_store_create_inproc(bp_store** store, bp_error* err) {
  return api_call(err, [=] { hand_out_store(store, [] { return make_inproc_store(); }); });
}
int32_t bp_store_create_prefix(bp_store* inner, const char* prefix, bp_store** store, bp_error* err) {
  return api_call(err, [=] {
    store_of(inner);
    hand_out_store(store, [=] { return make_prefix_store(inner->store, or_empty(prefix)); });
  });
}
int32_t bp_store_create_custom(const bp_store_callbacks* callbacks, bp_store** store, bp_error* err) {
  return api_call(err, [=] {
    const bp_store_callbacks known = complete(callbacks);
    hand_out_store(store, [&known] { return make_callback_store(known); });
  });
}
int32_t bp_store_answer_set(bp_store_answer* answer, const void* value, uint64_t size, bp_error* err) {
  return api_call(err, [=] { live(answer, "answer").value = bytes(value, size, "value"); });
}
void bp_store_release(bp_store* store) { release(store); }

int32_t bp_store_set(bp_store* store, const char* key, const void* value, uint64_t size, int64_t timeout_ns,
                     bp_error* err) {
  return api_call(err, [=] { store_of(store).set(key_of(key), bytes(value, size, "value"), deadline_of(timeout_ns)); });
}
int32_t bp_store_get(bp_store* store, const char* key, char** value, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
  return api_call(err, [=] {
    required(value, "value");
    hand_out_value(value, size, store_of(store).get(key_of(key), deadline_of(timeout_ns)));
  });
}
int32_t bp_store_add(bp_store* store, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns, bp_error* err) {
  return api_call(err, [=] {
    store_result(sum, "sum", [=] { return store_of(store).add(key_of(key), delta, deadline_of(timeout_ns)); });
  });
}
int32_t bp_store_wait(bp_store* store, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
  return api_call(err, [=] { store_of(store).wait(list(keys, count), deadline_of(timeout_ns)); });
}
int32_t bp_store_check(bp_store* store, const char* const* keys, uint64_t count, int32_t* exist, int64_t timeout_ns,
                       bp_error* err) {
  return api_call(err, [=] {
    store_result(exist, "exist",
                 [=] { return store_of(store).check(list(keys, count), deadline_of(timeout_ns)) ? 1 : 0; });
  });
}
int32_t bp_store_compare_set(bp_store* store, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, char** value, uint64_t* size,
                             int64_t timeout_ns, bp_error* err) {
  return api_call(err, [=] {
    required(value, "value");
    hand_out_value(value, size,
                   store_of(store).compare_set(key_of(key), bytes(expected, expected_size, "expected"),
                                               bytes(desired, desired_size, "desired"), deadline_of(timeout_ns)));
  });
}
int32_t bp_store_delete(bp_store* store, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err) {
  return api_call(err, [=] {
    const bool there = store_of(store).remove(key_of(key), deadline_of(timeout_ns));
    if (existed != nullptr) *existed = there ? 1 : 0;
  });
}
int32_t bp_store_num_keys(bp_store* store, int64_t* count, int64_t timeout_ns, bp_error* err) {
  return guarded(
      err, [=] { store_result(count, "count", [=] { return store_of(store).num_keys(deadline_of(timeout_ns)); }); });
}
int32_t bp_store_report_end(bp_store* store, int32_t rank, const char* identity, const char* reason, int64_t timeout_ns,
                            bp_error* err) {
  return api_call(err, [=] {
    required(identity, "identity");
    required(reason, "reason");
    report_end(store_of(store), rank, identity, reason, deadline_of(timeout_ns));
  });
}

}  // extern "C"
