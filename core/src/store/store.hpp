// SPDX-License-Identifier: Apache-2.0
//
// The key-value store through which ranks meet, and which tells them of each other's death: an interface with five
// implementations (TCP, file, in-process, callbacks of the program, and a prefix view of another store). All functions
// may be called from any thread and throw core::Error. A deadline that has passed still asks once ("0 does not wait");
// when a call that changes something ends in BP_TIMEOUT or BP_PEER_LOST, the change may or may not have been made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deadline.hpp"
#include "error.hpp"

struct bp_store_callbacks;

namespace backplane::core {

// Limits that hold for every store; beyond them is BP_INVALID. The two values of compare_set and the keys of one wait
// or check count together.
inline constexpr size_t kMaxKeySize = 4096;                // bytes, with all prefixes
inline constexpr size_t kMaxValueSize = size_t{64} << 20;  // bytes
inline constexpr size_t kMaxKeys = 65536;                  // in one wait or check

// How often those who watch over each other give a sign of life, and after how long a silence one counts as lost.
struct Heartbeat {
  int64_t interval_ns = 1'000'000'000;
  int64_t limit_ns = 10'000'000'000;

  // How often the silence of others is looked at: often enough for small limits, too.
  int64_t tick_ns() const { return std::min(interval_ns, limit_ns / 4); }
};
inline constexpr int64_t kShortestBeatNs = 10'000'000;
inline constexpr int64_t kLongestBeatNs = INT64_C(3600) * 1'000'000'000;  // of the interval and of the limit
// From 10 ms to 1 h, and the limit at least twice the interval, or one late sign of life would be taken for a death.
inline bool sound(const Heartbeat& heartbeat) {
  return heartbeat.interval_ns >= kShortestBeatNs && heartbeat.limit_ns <= kLongestBeatNs &&
         heartbeat.limit_ns / 2 >= heartbeat.interval_ns;
}

// Why somebody is not there any more. A rank departs by withdrawing; one whose process or connection ends before that,
// or from which nothing is heard for too long, is lost.
enum class Fate : uint8_t { kLost = 1, kDeparted = 2 };
using Fates = std::map<int32_t, Fate>;  // by rank

// News of a death.
struct Loss {
  int32_t rank = -1;   // of the scope; of a lost store: the rank that served it, -1 if none did
  bool store = false;  // the store itself is gone, so that no further death is heard of
  std::string text;    // "rank 3 (host, pid 17) is lost: its process ended", the same for all who are told
};

struct Enrolment {
  std::string scope;  // keeps groups apart that number their ranks each in their own way; a prefix store adds its own
  int32_t rank = -1;  // -1: only to be told of the losses of others
  std::string identity;  // "host, pid 17"
};

// A rank's place among those who watch over each other. Destroying it withdraws the rank, which takes at most a second,
// and waits for a callback that is running.
class Membership {
 public:
  virtual ~Membership() = default;
  // Does this store notice losses at all? One in the memory of a process does not.
  virtual bool watches() const = 0;
  // All who are lost or have departed by now.
  virtual Fates fates(Deadline deadline) = 0;
};

class Secret;

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
  // Enters a rank into a scope: from now on all others of the scope are told when it is lost, and `on_loss` is called
  // for each loss of the others, also for those that were before, in the same order on all ranks. Where a rank is
  // entered twice, the first one counts. The callback runs on a thread of the store, must not block, and must not
  // destroy the membership.
  virtual std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                             Deadline deadline) = 0;
  // Ends every call in progress and to come with `status` and `why` on this client only (a prefix view interrupts
  // nothing but itself). Not undone.
  virtual void interrupt(int32_t status, const std::string& why) = 0;
  // Was it? Does not block.
  virtual bool interrupted() const = 0;
  // Another handle on the same data and connection. Interrupting this one also interrupts it, but not the reverse: this
  // is how each group gets a store that its own abort ends.
  virtual std::shared_ptr<Store> view() = 0;
  // "tcp://127.0.0.1:29500": for messages.
  virtual std::string describe() const = 0;
};

// The server of a TCP store. Listens and serves on a thread of its own until destroyed; then it says goodbye, so that
// no client takes it for lost. The same happens when the process ends by exit or by returning from main.
class TcpStoreServer {
 public:
  virtual ~TcpStoreServer() = default;
  virtual uint16_t port() const = 0;
  // "10.0.0.1:29500", "[::1]:29500": where it listens, as numbers.
  virtual std::string address() const = 0;
  // Waits until no client is connected. BP_TIMEOUT names those that are left.
  virtual void wait(Deadline deadline) = 0;
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
  // Server: the rank in whose process it lives, -1 if it is none of the job's; and how clients show that they live
  // (left out: what the environment says, see environment.hpp).
  int32_t server_rank = -1;
  std::optional<Heartbeat> heartbeat = {};
  // Both ends have the same secret, which they prove to each other before they say anything else, and then everything
  // is encrypted; or neither has one.
  std::shared_ptr<const Secret> secret = {};
};

// BP_RESOURCE "cannot listen on 127.0.0.1:29500: the port is in use ..." if it cannot listen.
std::unique_ptr<TcpStoreServer> make_tcp_store_server(const TcpStoreOptions& options);
// Connects, trying again until the deadline while nobody listens there: BP_TIMEOUT with the last reason. BP_INVALID if
// what listens there is of another job, world size or protocol, or does not have the same secret.
std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options, Deadline deadline);
// A file on a disk that all ranks share, created if missing. It stays when the store is gone.
std::shared_ptr<Store> make_file_store(const std::string& path);
// Memory of this process.
std::shared_ptr<Store> make_inproc_store();
// The program's own key-value space; the required callbacks are there.
std::shared_ptr<Store> make_callback_store(const bp_store_callbacks& callbacks);
// The keys of `inner` that begin with `prefix` (which is added and removed silently).
std::shared_ptr<Store> make_prefix_store(const std::shared_ptr<Store>& inner, std::string prefix);

}  // namespace backplane::core
