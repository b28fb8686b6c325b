// SPDX-License-Identifier: Apache-2.0
//
// The key-value store through which ranks meet: an interface with four implementations (TCP, file, in-process, and a
// prefix view of another store). All functions may be called from any thread and throw core::Error. A deadline that has
// passed still asks once ("0 does not wait"); when a call that changes something ends in BP_TIMEOUT or BP_PEER_LOST,
// the change may or may not have been made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"

namespace backplane::core {

// Limits that hold for every store; beyond them is BP_INVALID. The two values of compare_set and the keys of one wait
// or check count together.
inline constexpr size_t kMaxKeySize = 4096;                // bytes, with all prefixes
inline constexpr size_t kMaxValueSize = size_t{64} << 20;  // bytes
inline constexpr size_t kMaxKeys = 65536;                  // in one wait or check

class Store {
 public:
  virtual ~Store() = default;

  // Sets a value, replacing an earlier one.
  virtual void set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  // Waits until the key exists. BP_TIMEOUT names the key.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  // Adds to a counter kept as decimal text (a missing one counts as 0); returns the sum. BP_INVALID if the value that
  // stands there is not a decimal number.
  virtual int64_t add(std::string_view key, int64_t delta, Deadline deadline) = 0;
  // Waits until all keys exist. BP_TIMEOUT names the missing ones (the first few of them).
  virtual void wait(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // Do all keys exist now?
  virtual bool check(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // Sets the key to `desired` if its value equals `expected` (an empty one also matches a missing key). Returns the
  // value that stands there afterwards (empty if the key is missing and did not match).
  virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  Deadline deadline) = 0;
  // Removes the key; was there one?
  virtual bool remove(std::string_view key, Deadline deadline) = 0;
  // How many keys there are, in the whole store also when asked through a prefix.
  virtual int64_t num_keys(Deadline deadline) = 0;
  // Ends every call in progress and to come with `status` and `why` on this client only (a prefix view interrupts
  // nothing but itself). Not undone.
  virtual void interrupt(int32_t status, const std::string& why) = 0;
  // Another handle on the same data and connection. Interrupting this one also interrupts it, but not the reverse: this
  // is how each group gets a store that its own abort ends.
  virtual std::shared_ptr<Store> view() = 0;
  // "tcp://127.0.0.1:29500": for messages.
  virtual std::string describe() const = 0;
};

// The server of a TCP store. Listens and serves on a thread of its own until destroyed.
class TcpStoreServer {
 public:
  virtual ~TcpStoreServer() = default;
  virtual uint16_t port() const = 0;
};

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // name or address: where to listen or connect
  uint16_t port = 0;               // server: 0 takes a free one
  std::string job_id;              // both ends must agree; a client of another job is refused
  int32_t rank = -1;               // of this client, -1 if it is none (a launcher)
  int32_t world_size = -1;         // if both ends give one and they disagree, the client is refused with both numbers
  // Server: once this key exists, the store is about to end and newcomers are told to try again, so that a rank which
  // starts the job's next round does not meet in the last one's store. Empty: never.
  std::string closing_key;
};

// BP_RESOURCE "cannot listen on 127.0.0.1:29500: the port is in use ..." if it cannot listen.
std::unique_ptr<TcpStoreServer> make_tcp_store_server(const TcpStoreOptions& options);
// Connects, trying again until the deadline while nobody listens there: BP_TIMEOUT with the last reason. BP_INVALID if
// what listens there is of another job, world size or protocol.
std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options, Deadline deadline);
// A file on a disk that all ranks share, created if missing. It stays when the store is gone.
std::shared_ptr<Store> make_file_store(const std::string& path);
// Memory of this process.
std::shared_ptr<Store> make_inproc_store();
// The keys of `inner` that begin with `prefix` (which is added and removed silently).
std::shared_ptr<Store> make_prefix_store(const std::shared_ptr<Store>& inner, std::string prefix);

}  // namespace backplane::core
