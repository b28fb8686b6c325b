// SPDX-License-Identifier: Apache-2.0
//
// The key-value store: ranks find each other and detect lost ranks through it. Five implementations: TCP, file,
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

// Limits of every store; BP_INVALID beyond them. kMaxValueSize also limits the two values of compare_set together and
// the keys of one wait or check together.
inline constexpr size_t kMaxKeySize = 4096;                // bytes, with all prefixes
inline constexpr size_t kMaxValueSize = size_t{64} << 20;  // bytes
inline constexpr size_t kMaxKeys = 65536;                  // in one wait or check

class Secret;

class Store : public KeyValueSpace {
 public:
  // Enrolls a rank in a scope: the others are notified when it is lost. `on_loss` is called for each loss of the
  // others, including earlier ones, in the same order on all ranks. The first entry of a rank counts. The
  // callback runs on a thread of the store, must not block, and must not destroy the membership.
  virtual std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                             Deadline deadline) = 0;
  // Removes all keys that begin with `prefix`, which must not be empty, in one step. BP_UNSUPPORTED unless
  // removes_prefixes: callbacks cannot list keys.
  virtual void remove_prefix(std::string_view /*prefix*/, Deadline /*deadline*/) {
    fail(BP_UNSUPPORTED, "the store at {} cannot list its keys", describe());
  }
  virtual bool removes_prefixes() const { return false; }
  // Marks a rank as lost whose process ended before it enrolled. No effect on a rank that has enrolled. BP_UNSUPPORTED
  // unless the store is a TCP store, the only kind that launchers serve.
  virtual void report_end(const Enrolment& /*rank*/, const std::string& /*reason*/, Deadline /*deadline*/) {
    fail(BP_UNSUPPORTED, "the store at {} takes no reports of ended ranks; only TCP stores do", describe());
  }
  // Ends all running and later calls of this handle and its views with `status` and `why`. Permanent. A prefix view
  // interrupts only itself.
  virtual void interrupt(int32_t status, const std::string& why) = 0;
  // Whether interrupt was called. Does not block.
  virtual bool interrupted() const = 0;
  // Another handle on the same data and connection. Interrupting this handle interrupts the view, but not the reverse:
  // each group uses a view, which its abort interrupts.
  virtual std::shared_ptr<Store> view() = 0;
  // "tcp://127.0.0.1:29500": for messages.
  virtual std::string describe() const = 0;
  // The numeric local address of the connection to the store; empty if there is none.
  virtual std::string local_address() const { return {}; }
};

// The server of a TCP store, on a thread of its own. The destructor, and the end of the process by exit or by returning
// from main, notify the clients of the shutdown.
class TcpStoreServer {
 public:
  virtual ~TcpStoreServer() = default;
  virtual uint16_t port() const = 0;
  // "10.0.0.1:29500", "[::1]:29500": the address on which it listens, numeric.
  virtual std::string address() const = 0;
  // Waits until no client is connected. BP_TIMEOUT names the remaining ones.
  virtual void wait(Deadline deadline) = 0;
};

// Job ids that were derived from a launcher's variables begin so. Some ranks may lack these variables, for example
// those that were started over ssh: such an id agrees with an empty one.
inline constexpr const char* kDerivedJobId = "auto:";

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // name or address: where to listen or connect
  uint16_t port = 0;               // server: 0 takes a free one
  std::string job_id;              // both ends must agree; a client of another job is refused
  int32_t rank = -1;               // of this client; -1: no rank (a launcher)
  int32_t world_size = -1;         // if both ends give one and they disagree, the client is refused with both numbers
  // Server: once this key exists, the store is about to end and new clients are told to retry. A rank that starts the
  // job's next round thus does not join the store of the last one. Empty: never.
  std::string closing_key;
  // Server: once this key exists, ranks that connect for the first time are refused with BP_PEER_LOST and its value.
  // Empty: never.
  std::string failure_key = {};
  // Server: the rank whose process runs it, -1 if it is not a rank of the job. `heartbeat`: that of the clients, by
  // default environment_heartbeat().
  int32_t server_rank = -1;
  std::optional<Heartbeat> heartbeat = {};
  int64_t resolve_ns = INT64_C(30) * 1000000000;  // server: how long a host name that is not known is looked up again
  // The secret of the job, or null; the same at both ends. With one, both ends prove it first and encrypt all frames.
  std::shared_ptr<const Secret> secret = {};
  // Client: the time after which a warning says why it still tries to connect; the next ones follow each minute.
  int64_t warn_after_ns = INT64_C(10) * 1000000000;
};

// BP_RESOURCE "cannot listen on 127.0.0.1:29500: the port is in use ...".
std::unique_ptr<TcpStoreServer> make_tcp_store_server(const TcpStoreOptions& options);
// Connects, with retries until the deadline: BP_TIMEOUT with the last reason. BP_INVALID if the server belongs to
// another job, world size or protocol, or has another secret.
std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options, Deadline deadline);
// A file on a disk that all ranks share, created if missing. The file outlives the store.
std::shared_ptr<Store> make_file_store(const std::string& path);
// Memory of this process.
std::shared_ptr<Store> make_inproc_store();
// The program's own key-value space. The required callbacks must be set.
std::shared_ptr<Store> make_callback_store(const bp_store_callbacks& callbacks);
// The keys of `inner` that begin with `prefix`. The caller uses keys without it.
std::shared_ptr<Store> make_prefix_store(const std::shared_ptr<Store>& inner, std::string prefix);

}  // namespace backplane::core
