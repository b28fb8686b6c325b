// SPDX-License-Identifier: Apache-2.0
//
// Store, the key-value store through which ranks find each other (torch.distributed's Store).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backplane/error.hpp"
#include "backplane/types.hpp"

namespace backplane {

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

// A server of a store on host:port, from construction to destruction. Port 0 selects a free port. Runs one thread.
class StoreServer {
 public:
  explicit StoreServer(const std::string& host = "127.0.0.1", uint16_t port = 0, const std::string& job_id = "") {
    bp_store_server* server = nullptr;
    detail::call(bp_store_server_start, host.c_str(), port, job_id.c_str(), &server);
    server_.reset(server);
  }
  uint16_t port() const { return bp_store_server_port(server_.get()); }

 private:
  struct Release {
    void operator()(bp_store_server* server) const { bp_store_server_release(server); }
  };
  std::unique_ptr<bp_store_server, Release> server_;
};

}  // namespace backplane
