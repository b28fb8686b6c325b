// SPDX-License-Identifier: Apache-2.0
//
// Store, the key-value store through which ranks find each other (torch.distributed's Store).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/error.hpp"
#include "backplane/types.hpp"

namespace backplane {

// A key-value space that the program already has, for Store::custom; bp_store_callbacks in backplane.h specifies each
// function and its threads. An exception that a function throws becomes the failure of the call: Error unchanged, any
// other as Status::kInternal. The functions are destroyed with the last use of the store.
struct StoreCallbacks {
  std::string name = "";  // for messages
  std::function<void(const std::string& key, std::string_view value, Timeout timeout)> set = {};
  // Returns nullopt, or throws an Error of kTimeout, if the key does not exist in time.
  std::function<std::optional<std::string>(const std::string& key, Timeout timeout)> get = {};
  std::function<int64_t(const std::string& key, int64_t delta, Timeout timeout)> add = {};
  std::function<std::string(const std::string& key, std::string_view expected, std::string_view desired,
                            Timeout timeout)>
      compare_set = {};
  std::function<bool(const std::string& key, Timeout timeout)> remove = {};
  std::function<int64_t(Timeout timeout)> num_keys = {};  // may be empty
};

namespace detail {

// The C callbacks over those of C++.
struct StoreTable {
  static int32_t set(void* ctx, const char* key, const void* value, uint64_t size, int64_t timeout_ns, bp_error* err) {
    return guarded(err, [=] { of(ctx).set(key, view(value, size), Timeout(timeout_ns)); });
  }
  static int32_t get(void* ctx, const char* key, bp_store_answer* answer, int64_t timeout_ns, bp_error* err) {
    bool found = false;
    const int32_t status = guarded(err, [=, &found] {
      const std::optional<std::string> value = of(ctx).get(key, Timeout(timeout_ns));
      if ((found = value.has_value())) give(answer, *value);
    });
    return status == BP_OK && !found ? BP_TIMEOUT : status;
  }
  static int32_t add(void* ctx, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ns, bp_error* err) {
    return guarded(err, [=] { *sum = of(ctx).add(key, delta, Timeout(timeout_ns)); });
  }
  static int32_t compare_set(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, bp_store_answer* answer, int64_t timeout_ns,
                             bp_error* err) {
    return guarded(err, [=] {
      give(answer,
           of(ctx).compare_set(key, view(expected, expected_size), view(desired, desired_size), Timeout(timeout_ns)));
    });
  }
  static int32_t delete_key(void* ctx, const char* key, int32_t* existed, int64_t timeout_ns, bp_error* err) {
    return guarded(err, [=] { *existed = of(ctx).remove(key, Timeout(timeout_ns)) ? 1 : 0; });
  }
  static int32_t num_keys(void* ctx, int64_t* count, int64_t timeout_ns, bp_error* err) {
    return guarded(err, [=] { *count = of(ctx).num_keys(Timeout(timeout_ns)); });
  }
  static void release(void* ctx) { delete &of(ctx); }

 private:
  static StoreCallbacks& of(void* ctx) { return *static_cast<StoreCallbacks*>(ctx); }
  static std::string_view view(const void* data, uint64_t size) { return {static_cast<const char*>(data), size}; }
  static void give(bp_store_answer* answer, const std::string& value) {
    call(bp_store_answer_set, answer, static_cast<const void*>(value.data()), value.size());
  }
};

}  // namespace detail

// A handle. Copies share the store. All calls block, at most for their timeout, which is 30 minutes by default, and
// throw Status::kTimeout after it. All members may be called from any thread. Values are byte strings of any content.
class Store {
 public:
  // Connects to the server at host:port (StoreServer, or rank 0 of a job). Retries for at most `timeout` while there is
  // no server. `job_id` must be the server's.
  static Store connect(const std::string& host, uint16_t port, const std::string& job_id = "",
                       Timeout timeout = std::chrono::minutes(5)) {
    bp_store* store = nullptr;
    detail::call(bp_store_connect, host.c_str(), port, job_id.c_str(), timeout.count(), &store);
    return Store(store);
  }
  // Opens a store in a file, which all ranks must be able to open. Creates the file if it does not exist.
  static Store file(const std::string& path) {
    bp_store* store = nullptr;
    detail::call(bp_store_open_file, path.c_str(), &store);
    return Store(store);
  }
  // Creates a store in the memory of this process.
  static Store inproc() {
    bp_store* store = nullptr;
    detail::call(bp_store_create_inproc, &store);
    return Store(store);
  }
  // Creates a store over the program's key-value space. All functions but `num_keys` must be set.
  static Store custom(StoreCallbacks callbacks) {
    auto own = std::make_unique<StoreCallbacks>(std::move(callbacks));
    using Table = detail::StoreTable;
    bp_store_callbacks table;
    bp_store_callbacks_init(&table);
    table.name = own->name.c_str();
    table.ctx = own.get();
    table.set = own->set ? Table::set : nullptr;
    table.get = own->get ? Table::get : nullptr;
    table.add = own->add ? Table::add : nullptr;
    table.compare_set = own->compare_set ? Table::compare_set : nullptr;
    table.delete_key = own->remove ? Table::delete_key : nullptr;
    table.num_keys = own->num_keys ? Table::num_keys : nullptr;
    table.release = Table::release;
    bp_store* store = nullptr;
    detail::call(bp_store_create_custom, static_cast<const bp_store_callbacks*>(&table), &store);
    static_cast<void>(own.release());
    return Store(store);
  }
  // A view of this store that prepends `prefix` to every key.
  Store with_prefix(const std::string& prefix) const {
    bp_store* store = nullptr;
    detail::call(bp_store_create_prefix, get(), prefix.c_str(), &store);
    return Store(store);
  }

  // Sets the value of a key, and replaces an earlier one.
  void set(const std::string& key, std::string_view value, Timeout timeout = kDefaultTimeout) {
    detail::call(bp_store_set, get(), key.c_str(), static_cast<const void*>(value.data()), value.size(),
                 timeout.count());
  }
  // Blocks until the key exists, and returns its value.
  std::string get(const std::string& key, Timeout timeout = kDefaultTimeout) {
    char* value = nullptr;
    uint64_t size = 0;
    detail::call(bp_store_get, get(), key.c_str(), &value, &size, timeout.count());
    return detail::take(value, size);
  }
  // Adds to a counter, whose value is decimal text, and returns the sum. A missing key counts as 0.
  int64_t add(const std::string& key, int64_t delta, Timeout timeout = kDefaultTimeout) {
    int64_t sum = 0;
    detail::call(bp_store_add, get(), key.c_str(), delta, &sum, timeout.count());
    return sum;
  }
  // Blocks until all keys exist.
  void wait(const std::vector<std::string>& keys, Timeout timeout = kDefaultTimeout) {
    const std::vector<const char*> names = pointers(keys);
    detail::call(bp_store_wait, get(), names.data(), names.size(), timeout.count());
  }
  // Returns true if all keys exist. Does not wait for them.
  bool check(const std::vector<std::string>& keys, Timeout timeout = kDefaultTimeout) {
    const std::vector<const char*> names = pointers(keys);
    int32_t exist = 0;
    detail::call(bp_store_check, get(), names.data(), names.size(), &exist, timeout.count());
    return exist != 0;
  }
  // Sets the key to `desired` if its value equals `expected`, or if `expected` is empty and the key does not exist.
  // Returns the value after the call.
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired,
                          Timeout timeout = kDefaultTimeout) {
    char* value = nullptr;
    uint64_t size = 0;
    detail::call(bp_store_compare_set, get(), key.c_str(), static_cast<const void*>(expected.data()), expected.size(),
                 static_cast<const void*>(desired.data()), desired.size(), &value, &size, timeout.count());
    return detail::take(value, size);
  }
  // Deletes a key. Returns true if it existed.
  bool remove(const std::string& key, Timeout timeout = kDefaultTimeout) {
    int32_t existed = 0;
    detail::call(bp_store_delete, get(), key.c_str(), &existed, timeout.count());
    return existed != 0;
  }
  // The number of keys.
  int64_t num_keys(Timeout timeout = kDefaultTimeout) {
    int64_t count = 0;
    detail::call(bp_store_num_keys, get(), &count, timeout.count());
    return count;
  }

  // The number of processes that wait in ProcessGroup::join with this store. See bp_store_newcomers.
  int64_t newcomers(Timeout timeout = kDefaultTimeout) const {
    int64_t count = 0;
    detail::call(bp_store_newcomers, get(), &count, timeout.count());
    return count;
  }

  bp_store* get() const { return store_.get(); }

 private:
  explicit Store(bp_store* store) : store_(store, bp_store_release) {}
  static std::vector<const char*> pointers(const std::vector<std::string>& keys) {
    std::vector<const char*> names;
    for (const std::string& key : keys) names.push_back(key.c_str());
    return names;
  }

  std::shared_ptr<bp_store> store_;
};

// A server of a store on host:port, from construction to destruction. Port 0 selects a free port, and the host "auto"
// the address by which other hosts reach this one. Runs one thread.
class StoreServer {
 public:
  explicit StoreServer(const std::string& host = "127.0.0.1", uint16_t port = 0, const std::string& job_id = "") {
    bp_store_server* server = nullptr;
    detail::call(bp_store_server_start, host.c_str(), port, job_id.c_str(), &server);
    server_.reset(server);
  }
  uint16_t port() const { return bp_store_server_port(server_.get()); }
  // "10.0.0.1:29500", "[fd00::1]:29500"
  std::string address() const {
    const char* address = bp_store_server_address(server_.get());
    return address == nullptr ? "" : address;
  }
  // Blocks until no client is connected, so that this process can exit last. Stores and groups of this process count:
  // release them first.
  void wait(Timeout timeout = kDefaultTimeout) { detail::call(bp_store_server_wait, server_.get(), timeout.count()); }

 private:
  struct Release {
    void operator()(bp_store_server* server) const { bp_store_server_release(server); }
  };
  std::unique_ptr<bp_store_server, Release> server_;
};

}  // namespace backplane
