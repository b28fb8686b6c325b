// SPDX-License-Identifier: Apache-2.0
//
// A worker: calls others over a Transport, and runs functions for them.
//
// Threads. What arrives is handled on the transport's: answers end calls, words about references change tables, short
// functions run, all without blocking; other functions, the encoding of values and their destruction go to the
// executor. Sends never block. No lock is held while anything is sent or anybody's code runs. Whoever sends counts as
// doing so (Sending), and the transport outlives that.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backplane/base/executor.hpp"
#include "group/group.hpp"
#include "group/liveness.hpp"
#include "rpc/calls.hpp"
#include "rpc/cancels.hpp"
#include "rpc/forks.hpp"
#include "rpc/functions.hpp"
#include "rpc/metrics.hpp"
#include "rpc/parcel.hpp"
#include "rpc/record.hpp"
#include "rpc/transport.hpp"
#include "rpc/values.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class Ref;

// Who joins.
struct WorkerConfig {
  std::string name;
  std::shared_ptr<Group> group;  // of all workers; the worker's own, it destroys it
  Registry* registry = nullptr;
  std::string backend;                            // with options; empty: agreed on
  std::shared_ptr<const BackendOptions> options;  // instead of those in `backend`, which names theirs or nothing
  int64_t timeout_ns = 0;                         // of joining
  int64_t rpc_timeout_ns = 0;                     // of calls that name none
  std::string init_method = "env://";             // for the options that are made here, like rpc_timeout_ns
  std::optional<Error> problem = {};              // why it cannot join: it has come to tell the others
};

class Worker : public std::enable_shared_from_this<Worker>, private Liveness::Listener, private Transport::Sink {
 public:
  // join.cpp: waits for all; what goes wrong on one is told to all. Throws core::Error.
  static std::shared_ptr<Worker> join(WorkerConfig config);
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int32_t rank() const { return rank_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& backend() const { return backend_; }
  bool anybody_gone() const;  // another worker has left, or died
  int32_t find(const std::string& name) const;

  // calls.cpp is their table, send.cpp what sends. BP_INHERIT_TIMEOUT: the worker's rpc_timeout_ns.
  uint64_t call(int32_t to, const std::string& function, Content arguments, int64_t timeout_ns, Done done);
  void cancel(uint64_t call);
  std::shared_ptr<Ref> remote(int32_t to, const std::string& function, Content arguments, int64_t timeout_ns);

  // references.cpp
  std::shared_ptr<Ref> keep(std::shared_ptr<Value> value);
  uint64_t fetch(const std::shared_ptr<Ref>& ref, int64_t timeout_ns, Done done);
  std::shared_ptr<Value> local(const Ref& ref, int64_t timeout_ns);

  // leave.cpp
  std::vector<std::string> all_gather(std::string_view object, int64_t timeout_ns);
  std::vector<std::string> shutdown(bool graceful, int64_t timeout_ns);  // returns leaks

  // report.cpp
  // One of the numbers: `peer` negative of the worker, else of what it has to do with that one.
  struct Metric {
    const char* name;
    uint32_t kind;  // BP_METRIC_...
    uint64_t value;
    int32_t peer = -1;
  };
  std::vector<Metric> metrics() const;
  std::string metrics_json() const;
  void show_calls(Group& group);
  std::string calls_json() const;  // for the flight recorder: those that are under way, and the last that were

  // Runs it on a thread of the executor; here, if that has stopped or there is no thread to be had.
  void run(std::function<void()> task);
  // Destroys a value there.
  void discard(std::shared_ptr<Value> gone);
  bool has_left();

  // The worker whose function this thread runs, and whether its caller waits no more.
  static std::shared_ptr<Worker> current();
  static bool cancelled();
  // Throws BP_INVALID in a short function, on whose thread messages arrive.
  static void require_may_wait();

 private:
  friend class Ref;
  struct Inbound;
  struct Passing;
  class Sending;
  class Ending;

  explicit Worker(WorkerConfig config);

  // join.cpp
  void agree_on_all(const WorkerConfig& config);
  void start(const WorkerConfig& config);

  // send.cpp
  Deadline deadline_of(int64_t* timeout_ns) const;
  void require_peer(int32_t to) const;
  // A request's place in the books; it ends once. BP_INHERIT_TIMEOUT becomes the worker's.
  uint64_t begin(int32_t to, const Header& header, uint64_t request_bytes, int64_t* timeout_ns, Done done);
  uint64_t request(int32_t to, Header header, Content content, int64_t timeout_ns, Done done);
  // `id`: 0 if it is to come after what was sent before, as a goodbye; otherwise it may overtake that.
  void transmit(int32_t to, const Header& header, Content content, uint64_t id, int64_t timeout_ns);
  static constexpr uint64_t kUnnumbered = ~uint64_t{0};  // of words that may, and whose loss is nobody's affair
  void transmit_or_fail(int32_t to, const Header& header, Content content, int64_t timeout_ns);
  void loop_back(const bp_rpc_message& message);
  void end(uint64_t number, const Error& error, int32_t to = Calls::kAnybody);  // if it is one to `to`
  void expire(uint64_t number);
  void tell_cancel(int32_t to, const Cancels::Told& told);
  Error labelled(const Call& call, const Error& error) const;
  // Gives `to` forks of its own of the references in content, then goes on with them in the header, or with an error.
  void pass_on(int32_t to, Header header, Content content,
               std::function<void(Header header, Content content, const Error* error)> next);
  void drop_forks(const Header& header);  // of a message that was never sent

  // serve.cpp
  void received(int32_t from, const bp_rpc_message& message) override;
  void failed(int32_t to, uint64_t id, const Error& error) override;
  void lost(int32_t peer, const Error& error) override;
  void refused(int32_t from, const bp_rpc_message& message, const Error& error) override;
  // `problem`: its buffers have no place here; NULL: none.
  void take(int32_t from, const bp_rpc_message& message, const Error* problem);
  void handle(int32_t from, Header header, std::shared_ptr<Parcel> parcel, const Error* problem);
  void serve(int32_t from, Header header, std::shared_ptr<Parcel> parcel);
  void perform(const std::shared_ptr<Inbound>& inbound);
  void answer(const std::shared_ptr<Inbound>& inbound, const Error* error, Content result);
  void on_answer(int32_t from, const Header& header, std::shared_ptr<Parcel> parcel);
  void on_cancel(int32_t from, const Header& header);
  void cancel_again(int32_t to);
  void tell_doubt(int32_t to);
  void on_doubt(int32_t from, uint64_t last);
  void reply(int32_t to, uint64_t call, Content content);
  void reply_error(int32_t to, uint64_t call, const Error& error, uint64_t attempt = 0);
  std::shared_ptr<Value> invoke(const std::shared_ptr<Inbound>& inbound);

  // references.cpp
  Id next_id() { return {rank_, next_id_.fetch_add(1) + 1}; }
  void drop(int32_t owner, const Id& value, const Id& fork);
  void give_up(int32_t receiver, std::vector<Passed> forks);
  int64_t word_timeout_ns() const;
  void tell(int32_t to, Header word, int attempts = 5);
  void receive_refs(const Header& header, Parcel* parcel);
  void serve_reference(int32_t from, const Header& header);

  // leave.cpp
  void on_loss(const Loss& loss) override;
  void forget(int32_t peer, const Error& why);
  std::optional<Error> loss_of(int32_t rank) const;
  void settle(Deadline deadline);
  std::string calls_under_way() const;
  std::string functions_that_run() const;
  bool quiet(uint64_t* begun) const;
  bool begin_to_leave();
  void say_goodbye();
  // False: a function goes on.
  bool close(const Error& why, Deadline deadline);

  const std::vector<int32_t> global_ranks_;
  const int32_t rank_;
  const int64_t rpc_timeout_ns_;
  const bool watched_;  // deaths are noticed
  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t> ranks_;  // by name
  std::string backend_;
  const Member* member_ = nullptr;
  std::shared_ptr<const BackendOptions> options_;
  std::vector<uint64_t> most_bytes_;  // of a message to each worker
  Metrics metrics_;
  Record record_;
  Forks forks_;
  Cancels cancels_;
  Values values_;
  Calls calls_;
  std::unique_ptr<base::Executor> executor_;  // runs functions
  std::atomic<uint64_t> next_id_ = 0;
  std::atomic<uint64_t> arrived_ = 0;  // requests, ever
  std::atomic<size_t> ending_ = 0;     // requests that are being ended; messages with references

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::pair<int32_t, uint64_t>, std::shared_ptr<Inbound>> inbound_;
  std::map<int32_t, Error> lost_;
  bool closed_ = false;
  std::unique_ptr<Transport> transport_;
  size_t sending_ = 0;             // threads that use the transport
  std::condition_variable quiet_;  // notified when a function or a send has ended

  std::mutex leave_mutex_;  // guards what follows
  std::condition_variable left_;
  std::shared_ptr<Liveness> liveness_;
  std::shared_ptr<Group> group_;  // NULL once the worker has left
  size_t gathering_ = 0;          // threads in all_gather
  std::optional<std::thread::id> leaving_;
};

// A use of the transport, which does not end meanwhile. Throws BP_CANCELLED if it has.
class Worker::Sending {
 public:
  explicit Sending(Worker* worker);
  ~Sending();
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  Transport* operator->() const { return worker_.transport_.get(); }

 private:
  Worker& worker_;
};

// A request is being ended: what it holds, as a reference, may go only then, and that may begin another one.
class Worker::Ending {
 public:
  explicit Ending(Worker* worker) : worker_(*worker) { ++worker_.ending_; }
  ~Ending() { --worker_.ending_; }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

 private:
  Worker& worker_;
};

// A function that runs, or is about to, for somebody.
struct Worker::Inbound : std::enable_shared_from_this<Worker::Inbound> {
  std::shared_ptr<Worker> worker;
  int32_t from = -1;
  Header header;
  std::shared_ptr<Parcel> parcel;
  std::optional<Function> function;  // none: there is none of its name
  bool is_inline = false;            // it runs where its call has arrived
  const Deadline::Clock::time_point arrived = Deadline::Clock::now();
  std::atomic<bool> runs = false;   // not only waits for a thread
  std::atomic<bool> ended = false;  // it has run; its caller may already have the answer
  std::atomic<bool> cancelled = false;

  static thread_local Inbound* running;  // of this thread
};

// A reference: this worker's claim (fork) on a value. Whoever drops the last handle tells the owner.
class Ref {
 public:
  // `confirmed`: the owner knows of the fork already.
  Ref(std::shared_ptr<Worker> worker, const Passed& passed, bool confirmed);
  ~Ref();
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;

  int32_t owner() const { return passed_.owner; }
  const Id& value() const { return passed_.value; }
  const Worker& worker() const { return *worker_; }
  const std::shared_ptr<Worker>& shared_worker() const { return worker_; }

  // Calls `ready` once the owner has confirmed the claim (NULL) or could not; at once, if that is known.
  void when_confirmed(std::function<void(const Error* error)> ready);
  void confirm(const Error* error);
  // The value, at its owner, stays as long as this claim, whatever becomes of the owner's books.
  void hold(std::shared_ptr<Value> value);

 private:
  const std::shared_ptr<Worker> worker_;
  const Passed passed_;
  std::mutex mutex_;
  bool settled_;
  std::optional<Error> failure_;
  std::vector<std::function<void(const Error*)>> waiting_;
  std::shared_ptr<Value> held_;
};

}  // namespace backplane::core::rpc
