// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives. A message of up to kEagerLimit bytes (kMaxEager with more ranks than processors) is copied into
// the channel, which completes its send, as long as unreceived messages at the receiver stay below kWindow. Any other
// message is announced and stays in the sender's buffer until its receiver is ready. Then it is sent in pieces that
// stay in the cache, or the receiver copies it in place: from the sender's heap (heap.hpp), or from the sender's
// process if that is faster (cross_memory.hpp). A receiver always empties its channels, so that no message blocks
// another.
//
// Every waiting thread makes progress for all operations of the group, under one lock that no thread holds while it
// sleeps.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/sdk/probe.hpp"
#include "backplane/sdk/process_group.hpp"
#include "cross_memory.hpp"
#include "matcher.hpp"
#include "peers.hpp"
#include "pools.hpp"
#include "progress.hpp"
#include "progress_thread.hpp"
#include "spin_lock.hpp"
#include "transport.hpp"

namespace backplane::shm {

class Messages final : public sdk::ProbeTable {
 public:
  // `view` and `peers` are null in a group of one, `pools` and `cross` if zero copy is not available. All must outlive
  // this object. `log` gets the results of measurements, on any thread.
  Messages(int32_t rank, int32_t world_size, const View* view, Peers* peers, const Pools* pools, Waiter& waiter,
           CrossMemory* cross = nullptr, std::function<void(const std::string&)> log = {});

  // Submits a BP_SEND or BP_RECV. Returns null if it is done. Any thread.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);

  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override;
  void drop(bp_message* message) noexcept override;

  // Ends the progress thread. Call after an abort.
  void stop() { progress_thread_.stop(); }

  // Makes progress. A quick poll does nothing if another thread holds the lock.
  void poll(Poll mode);

 private:
  friend class MessageWork;
  class Lock;  // holds lock_

  struct Outgoing {
    Operation* send;
    uint64_t offset;  // bytes sent
    bool is_exposed;  // the receiver may be reading the buffer
  };
  struct Incoming {
    uint64_t tag;
    uint64_t size;
    uint64_t offset;      // bytes received
    Operation* receive;   // null: the bytes go to the stash
    RemoteBuffer remote;  // where to read it, unless it is sent
    int64_t began;        // start of the measurement in ns on the steady clock; 0: not measured
    std::unique_ptr<std::byte[]> stash;
    bool is_discarded = false;      // too large for its receive, or no memory to stash it
    bool is_reply_pending = false;  // all bytes are here, but the reply is not yet in the channel
    bool has_joined() const { return offset == size && !is_reply_pending; }
    void fall_back() {  // the message is to be sent after all
      remote = {};
      offset = 0;
      began = 0;  // the time is not meaningful for either way
    }
  };
  struct Reply {
    Kind kind;
    uint64_t tag;
    uint64_t id;
    uint64_t size;
  };
  // A probed message, until it is received or dropped.
  struct Probed {
    Message message;
    std::optional<sdk::Failure> lost;  // why it can no longer be received
  };
  struct Peer {
    Outbox out;
    Inbox in;
    std::deque<Reply> controls;    // waiting for room
    std::deque<Operation*> sends;  // waiting for room
    std::map<uint64_t, Outgoing> announced;
    std::deque<uint64_t> ready_ids;               // of `announced`: the receiver is ready
    std::map<uint64_t, Incoming> incoming_by_id;  // by the peer's id
    std::deque<uint64_t> to_fetch;                // of `incoming_by_id`: to be read in place
    uint64_t last_id = 0;                         // of its announcements; ids must increase
    std::optional<sdk::Failure> lost;             // why nothing can arrive any more
  };

  Peer& at(int32_t rank) { return peers_[static_cast<size_t>(rank)]; }
  void open_channel(int32_t rank, bool to_send);
  bool start(Operation& operation, bp_message* message);
  void leave_in_flight(Operation& operation);
  void start_send(Operation& send);
  void start_receive(Operation& receive);
  enum class DirectReceive { kNone, kReceived, kImpossible };
  DirectReceive receive_directly(Operation& receive, int polls);
  bool may_receive_directly() { return ++direct_attempts_ % kDirectAttempts != 0; }
  bool receive_directly_yielding(Operation& receive);
  void match_or_post(Operation& receive);
  void assign(const Message& message, Operation& receive);
  const sdk::Failure* reason_to_fail(int32_t source);
  void receive_probed(Operation& receive, const bp_message* message);
  Probed take_probed(const bp_message* message);
  void fail_probed(const std::function<bool(const Message&)>& which, const sdk::Failure& why);
  void on_end(Operation& operation, sdk::Notice notice);
  void fail_all_with_notice();
  void send_to_self(Operation& send);
  bool wait(Operation& operation, int64_t timeout_ns);
  bool wait(Operation& operation, LazyDeadline& deadline);
  bool mode(const Operation& operation);
  void cancel(Operation& operation, const sdk::Failure& why);
  void give_up(Operation& operation, const sdk::Failure& why);
  void cancel_send(Operation& send);
  void requeue_incoming(Operation& receive);

  void progress();
  bool may_be_eager(const Operation& send) const;
  bool put(Peer& peer, Operation& send);
  void push(int32_t rank);
  bool put_control(Peer& peer);
  bool push_pieces(Peer& peer);
  void pull(int32_t rank);
  bool dispatch(int32_t rank, const Arrival& arrival);
  void on_message(int32_t rank, const Arrival& arrival);
  bool on_announce(int32_t rank, const Arrival& arrival);
  void on_ready(int32_t rank, const Arrival& arrival);
  bool on_data(int32_t rank, const Arrival& arrival);
  bool find_exposed(int32_t rank, const Arrival& arrival, RemoteBuffer& remote);
  Incoming& start_incoming(const Message& announced, Operation& receive);
  void fetch(int32_t rank);
  bool fetch_part(int32_t rank, Incoming& incoming);
  static std::byte* room(const Incoming& incoming);
  static void append(Incoming& incoming, const std::byte* data, uint64_t size);
  void measure(const Incoming& incoming);
  void log_refusal();
  void complete(Peer& peer, uint64_t id);
  void on_withdraw(int32_t rank, uint64_t id);
  void accept(const Message& announced, Operation& receive);
  void resume(const Message& message, Operation& receive);
  static void discard(Peer& peer, uint64_t id);
  void send_control(int32_t rank, const Reply& reply);
  void handle_departures();
  void lose_peer(int32_t rank, const sdk::Failure& why);

  // Returns false if the message is too long; the receive has failed then.
  bool fits(Operation& receive, int32_t source, uint64_t tag, uint64_t size);
  void deliver(Operation& receive, int32_t source, uint64_t tag, const std::byte* data, uint64_t size);
  void set_final_status(Operation& operation, Operation::Status status);
  void complete_with_notice(Operation& operation, Operation::Status status);
  void finish(Operation& operation);
  void fail(Operation& operation, const sdk::Failure& why);

  static constexpr uint32_t kDirectAttempts = 16;  // of this many receives in a row, one polls the other ranks
  static constexpr int kSpinPolls = 64;            // for one message, before other ranks are polled
  static constexpr int kMaxYields = 4;             // yields before the regular wait

  const int32_t rank_;
  const int32_t world_size_;
  const View* const view_;
  Peers* const members_;
  const Pools* const pools_;
  Waiter& waiter_;
  CrossMemory* const cross_;
  const std::function<void(const std::string&)> log_;

  SpinLock lock_;
  Matcher matcher_;
  std::list<Probed> probed_;
  std::map<Operation*, sdk::Notice> notices_;  // registered notices of operations in flight
  std::vector<Peer> peers_;
  uint32_t direct_attempts_ = 0;  // receives that tried receive_directly
  uint64_t next_order_ = 0;
  uint64_t next_id_ = 0;
  uint32_t departures_ = 0;  // as last seen
  int32_t lost_count_ = 0;
  CopyTuner tuner_;
  std::vector<std::string> notes_;   // to be logged when the lock is released
  bool has_logged_refusal_ = false;  // that a rank cannot be read has been logged
  bool has_finished_ = false;        // something completed, or is left to be fetched
  ProgressThread progress_thread_;   // last: its thread uses the fields above
};

// Holds the lock. On release wakes this rank's threads if an operation has completed.
class Messages::Lock {
 public:
  explicit Lock(Messages& messages) : messages_(messages) { messages_.lock_.lock(); }
  Lock(Messages& messages, std::adopt_lock_t) : messages_(messages) {}
  ~Lock() {
    const bool wake = std::exchange(messages_.has_finished_, false);
    const std::vector<std::string> notes = std::exchange(messages_.notes_, {});
    messages_.lock_.unlock();
    for (const std::string& each : notes) {
      if (messages_.log_) messages_.log_(each);
    }
    if (wake) messages_.waiter_.wake();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Messages& messages_;
};

}  // namespace backplane::shm
