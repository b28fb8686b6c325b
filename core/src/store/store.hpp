// SPDX-License-Identifier: Apache-2.0
//
// The key-value store through which ranks meet and learn of each other's death. Five implementations: TCP, file,
// in-process, callbacks of the program, and a prefix view of another store.
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
#include "liveness/heartbeat.hpp"
#include "liveness/key_value_space.hpp"
#include "liveness/membership.hpp"

struct bp_store_callbacks;

namespace backplane::core {

// Limits that hold for every store; beyond them is BP_INVALID. The two values of compare_set and the keys of one wait
// or check count together.
inline constexpr size_t kMaxKeySize = 4096;                // bytes, with all prefixes
inline constexpr size_t kMaxValueSize = size_t{64} << 20;  // bytes
inline constexpr size_t kMaxKeys = 65536;                  // in one wait or check

class Secret;

class Store : public KeyValueSpace {
 public:
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
