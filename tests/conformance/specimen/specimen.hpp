// SPDX-License-Identifier: Apache-2.0
//
// The specimen: a small correct backend over TCP on loopback, to be broken in one place at a time (mutants.hpp). Small
// messages are eager within a window, others wait at the sender (rendezvous); native collectives are linear. One lock
// guards a group and is never held while waiting; one thread reads, writes and closes, one runs collectives.
//
// Functions marked [lock] are called with the lock held. Everything virtual is there for mutants.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "collective.hpp"
#include "mutants.hpp"
#include "operation.hpp"
#include "pool.hpp"

namespace backplane::specimen {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Lock = std::unique_lock<std::mutex>;

constexpr uint64_t kOverhead = 128;          // of one eager message, counted beside its bytes
constexpr int64_t kMillisecond = 1'000'000;  // in the ABI's nanoseconds

// The moment `timeout_ns` from now; TimePoint::max() if there is no limit.
TimePoint deadline_after(int64_t timeout_ns);

// The options.
struct Settings {
  explicit Settings(const sdk::Options& options);

  std::string address;
  uint16_t port;
  int backlog;
  uint64_t eager_limit;
  uint64_t window;
  std::chrono::nanoseconds linger;
  std::chrono::nanoseconds handshake;
  double retry_growth;
  bool descending;  // native collectives talk to the others from the last to the first
  Key secret;
};

// A frame on its way out, with its bytes: `owned`, or those of `send`.
struct Outgoing {
  Frame frame;
  std::vector<std::byte> owned;
  OperationPtr send;
  uint64_t sent = 0;  // bytes of frame and message together
};

struct Peer {
  int fd = -1;                        // closed by the progress thread alone
  bool known = false;                 // connected; no other connection is accepted as this rank
  bool broken = false;                // the connection is to be closed
  bool left = false;                  // it said goodbye
  bool goodbye = false;               // we said goodbye
  bool goodbye_acknowledged = false;  // it answered our goodbye
  std::optional<sdk::Failure> gone;   // why it sends no more
  std::deque<Outgoing> outgoing;
  uint64_t in_window = 0;  // eager bytes that it has not credited yet
  uint64_t owed = 0;       // eager bytes received that we have not credited yet

  // The frame being read.
  Frame frame;
  uint64_t have = 0;        // bytes of the frame
  uint64_t have_bytes = 0;  // bytes of the message behind it
  std::vector<std::byte> bytes;
  OperationPtr into;  // kData: the receive; null: discarded
};

// An accepted connection before its hello is complete.
struct PendingConnection {
  int fd = -1;
  Hello hello;
  size_t have = 0;
  TimePoint deadline;
};

// A probed message. Its address is the bp_message.
struct Message {
  Arrival arrival;
  std::optional<sdk::Failure> lost;  // its sender is lost or has withdrawn it
};

inline Message& message_of(bp_message* message) { return *reinterpret_cast<Message*>(message); }

class Specimen {
 public:
  Specimen();
  virtual ~Specimen() = default;
  Specimen(const Specimen&) = delete;
  Specimen& operator=(const Specimen&) = delete;

  // The life of a group, as sdk::ProcessGroup has it. `start` waits until all ranks are connected; `close` is
  // called even after a failed one.
  virtual void start(const sdk::Context& context);
  virtual std::unique_ptr<sdk::Work> submit(const bp_op& op);
  virtual void abort(const sdk::Failure& why) noexcept;
  virtual void close() noexcept;
  virtual const void* extension(std::string_view id);
  virtual Pool& pool() { return pool_; }
  virtual Copies& copies() { return copies_; }

  // The functions of a work of this group.
  virtual bool wait(Task& task, int64_t timeout_ns);
  virtual void cancel(const TaskPtr& task) noexcept;
  // Has the device's stream, of which there is one, wait for the task.
  virtual bool wait_on_stream(const TaskPtr& task, int64_t timeout_ns);

  // "backplane.probe/1". Null: there is no such message yet.
  virtual Message* probe(int32_t peer, uint64_t tag);
  virtual void drop(Message* message);
  // "backplane.notify/1"
  virtual void on_end(Task& task, void (*ended)(void* to), void* to);
  // "backplane.interrupt/1": whether the program interrupts an operation that blocks in submit. Unlocks meanwhile.
  virtual bool interrupted(const bp_op& op, Lock& lock);

  // For collectives: messages of their own, from the collective's thread.
  virtual void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
                       uint64_t count);
  virtual void run_collective(Collective& collective);
  void post(Collective& collective, bool sends, int32_t peer, void* data, uint64_t size);
  void await_posted(Collective& collective);

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_size_; }
  const Settings& settings() const { return *settings_; }

 protected:
  // start.cpp
  virtual void listen();
  virtual void publish();
  virtual void dial(int32_t rank, TimePoint deadline);
  virtual void await_others(TimePoint deadline);
  void start_threads();
  virtual void check_abort() const;  // throws BP_CANCELLED if the host asks for it
  int try_connect(const std::string& address, uint16_t port, TimePoint deadline);
  bool try_handshake(int fd, int32_t rank, const Key& key, TimePoint deadline);
  bool await_socket(int fd, short events, TimePoint deadline);
  void adopt(int32_t rank, int fd);  // [lock]

  // operations.cpp, all [lock]
  virtual OperationPtr make_operation(const bp_op& op);
  void begin(const OperationPtr& operation);
  void begin_held();  // those whose turn in the stream has come
  virtual void submit_send(const OperationPtr& send);
  virtual void submit_receive(const OperationPtr& receive);
  virtual bool eager(const Operation& send);  // may it be copied and be done at once?
  virtual void arrive(Arrival arrival);
  virtual void match(const OperationPtr& receive, Arrival arrival);
  virtual void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size);
  virtual void truncated(const OperationPtr& receive, int32_t source, uint64_t size);
  virtual void credit(int32_t source, uint64_t size);
  virtual void give_up(const OperationPtr& operation, const sdk::Failure& why);
  void give_up_task(const TaskPtr& task, const sdk::Failure& why);  // not [lock]
  void give_up_send(const OperationPtr& send, const sdk::Failure& why);
  void give_up(Collective& collective, const sdk::Failure& why);
  virtual void drop_peer(int32_t rank, const sdk::Failure& why);
  void repost(const OperationPtr& receive);
  virtual void report(const Operation& receive, int32_t source, uint64_t size);  // into its bp_result
  void finish(Task& task);
  void block(const bp_op& op, const TaskPtr& task, const std::string& what, Lock& lock);  // until it is done
  void fail(Task& task, const sdk::Failure& why);
  sdk::Failure about(const Operation& operation, const sdk::Failure& why) const;
  void require_alive() const;   // throws why this rank's group was aborted
  bool all_peers_left() const;  // every other rank has left
  Peer& peer(int32_t rank) { return peers_[static_cast<size_t>(rank)]; }

  // probe.cpp, all [lock]
  virtual void submit_probed(const OperationPtr& receive);
  Message take_probed(const Message* message);
  virtual void lose_probed(int32_t source, const sdk::Failure& why);
  void withdraw_probed(int32_t source, uint64_t send);
  static sdk::Failure withdrawn(int32_t source);

  // protocol.cpp, all [lock]
  virtual void enqueue(int32_t rank, const Frame& frame, std::vector<std::byte> owned = {}, OperationPtr send = {});
  virtual void flush(int32_t rank);
  virtual void on_frame(int32_t rank, const Frame& frame);  // a frame without its bytes
  virtual void on_message(int32_t rank);                    // all bytes of peer(rank).frame are there
  void on_ready(int32_t rank, const Frame& frame);
  void on_drop(int32_t rank, const Frame& frame);
  void on_void(int32_t rank, const Frame& frame);
  virtual void on_goodbye(int32_t rank);
  void read_peer(int32_t rank);
  bool read_some(int32_t rank);  // false: nothing there for now
  virtual bool well_formed(int32_t rank, const Frame& frame);
  virtual void break_off(int32_t rank, const std::string& why);
  virtual void report_failure(int32_t rank, const std::string& why);  // to the host

  // progress.cpp
  void progress();
  void serve(Lock& lock);
  virtual void accept_connections();
  virtual bool hear(PendingConnection& pending);  // false: done with it
  virtual uint32_t judge(const Hello& hello, bool& trusted);
  void close_connections();
  virtual void send_goodbyes(Lock& lock);
  void wake();
  void work();  // the collectives' thread

  std::optional<sdk::Host> host_;
  std::optional<Settings> settings_;
  int32_t rank_ = 0;
  int32_t world_size_ = 0;
  Key key_ = {};
  int listener_ = -1;
  int wake_ = -1;
  std::thread progress_thread_;
  std::thread collective_thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool leaving_ = false;
  std::optional<sdk::Failure> aborted_;
  std::vector<Peer> peers_;
  std::list<PendingConnection> pending_;
  TimePoint accept_again_ = {};
  Matcher matcher_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, OperationPtr> waiting_sends_;  // requested, by id
  std::map<uint64_t, OperationPtr> incoming_;       // receives whose message is on its way, by id
  std::deque<CollectivePtr> collectives_;           // not begun
  std::vector<TaskPtr> stream_;                     // what operations on the device wait for
  std::deque<OperationPtr> held_;                   // that do
  std::list<Message> probed_;                       // neither received nor dropped yet
  std::vector<std::byte> scratch_;
  Pool pool_;
  Copies copies_;
  sdk::Interruption interruption_;
  bp_notify_api notify_;
  bp_probe_api probe_;
  bp_native_api native_;
};

}  // namespace backplane::specimen
