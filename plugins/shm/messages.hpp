// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives. A message up to kEagerLimit is copied into the channel, and its send is done, as long as what
// waits unreceived at its receiver stays below kWindow. Any other is announced and stays in the sender's buffer until
// its receiver is ready; then its bytes follow in pieces that stay in the cache, or the receiver copies them from
// there: if that buffer lies in the sender's heap (heap.hpp), or if reading in the sender's process is faster here
// (cross_memory.hpp). The receiver always empties its channels, so that no message keeps another one waiting.
//
// Whoever waits, for whatever operation of the group, moves everything on, under one lock that nobody sleeps with.
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
#include "brief_lock.hpp"
#include "cross_memory.hpp"
#include "helper.hpp"
#include "matcher.hpp"
#include "peers.hpp"
#include "pools.hpp"
#include "ring.hpp"
#include "waiting.hpp"

namespace backplane::shm {

class Messages final : public sdk::ProbeTable {
 public:
  // `view` and `peers` are null in a group of one, `pools` and `cross` if nothing is lent there. All must outlive this
  // object. `log` is told what was measured; any thread.
  Messages(int32_t rank, int32_t world_size, const View* view, Peers* peers, const Pools* pools, Waiting& waiting,
           CrossMemory* cross = nullptr, std::function<void(const std::string&)> log = {});

  // A BP_SEND or BP_RECV; null: done. Any thread.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);

  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override;
  void drop(bp_message* message) noexcept override;

  // Ends the thread that moves on what nobody waits for. After an abort.
  void stop() { helper_.stop(); }

  // Moves on what can be moved on; a quick look leaves that to another thread which has the lock.
  void move_on(Look look);

 private:
  friend class MessageWork;
  class Turn;  // the lock

  struct Outgoing {
    Operation* send;
    uint64_t offset;  // bytes that are on their way
    bool is_lent;     // the receiver may be reading the buffer
  };
  struct Incoming {
    uint64_t tag;
    uint64_t size;
    uint64_t offset;     // bytes that have come
    Operation* receive;  // who wants them; null: they go to the stash
    Lent lent;           // where to fetch them, unless they are sent
    int64_t began;       // if it is measured how long it takes: when, in nanoseconds on the steady clock; else 0
    std::unique_ptr<std::byte[]> stash;
    bool is_unwanted = false;  // a receive was too small for it, or there was no memory to keep it
    bool is_owed = false;      // all of it is here, but not yet in the channel that it is
    bool has_come() const { return offset == size && !is_owed; }
    void give_up() {  // it comes through the channel after all
      lent = {};
      offset = 0;
      began = 0;  // which tells nothing about either way
    }
  };
  struct Reply {
    Kind kind;
    uint64_t tag;
    uint64_t id;
    uint64_t size;
  };
  // A message that was probed, until it is received or dropped.
  struct Held {
    Message message;
    std::optional<sdk::Failure> lost;  // why it cannot be received any more
  };
  struct Peer {
    Outbox out;
    Inbox in;
    std::deque<Reply> controls;    // that found no room
    std::deque<Operation*> sends;  // that found no room
    std::map<uint64_t, Outgoing> announced;
    std::deque<uint64_t> wanted;          // of those: whose receiver is ready
    std::map<uint64_t, Incoming> coming;  // by the peer's id
    std::deque<uint64_t> lent;            // of those: what is to be fetched
    uint64_t last_id = 0;                 // of its announcements, which count up
    std::optional<sdk::Failure> gone;     // why nothing comes from it any more
  };

  Peer& at(int32_t rank) { return peers_[static_cast<size_t>(rank)]; }
  void open_channel(int32_t rank);
  bool start(Operation& operation, bp_message* message);
  void leave_in_flight(Operation& operation);
  void start_send(Operation& send);
  void start_receive(Operation& receive);
  enum class Caught { kNothing, kIt, kCannot };
  Caught catch_next(Operation& receive, int looks);
  bool may_catch() { return ++caught_ % kCatches != 0; }
  bool catch_in_turns(Operation& receive);
  void place(Operation& receive);
  void give(const Message& message, Operation& receive);
  const sdk::Failure* reason_to_fail(int32_t source);
  void receive_held(Operation& receive, const bp_message* message);
  Held take_held(const bp_message* message);
  void lose_held(const std::function<bool(const Message&)>& which, const sdk::Failure& why);
  void on_end(Operation& operation, sdk::Notice notice);
  void end_noticed();
  void send_to_self(Operation& send);
  bool wait(Operation& operation, int64_t timeout_ns);
  bool look(const Operation& operation);
  void cancel(Operation& operation, const sdk::Failure& why);
  void give_up(Operation& operation, const sdk::Failure& why);
  void cancel_send(Operation& send);
  void leave_to_others(Operation& receive);

  void progress();
  bool put(Peer& peer, Operation& send);
  void push(int32_t rank);
  bool put_control(Peer& peer);
  bool push_pieces(Peer& peer);
  void pull(int32_t rank);
  bool take(int32_t rank, const Arrival& arrival);
  void arrived(int32_t rank, const Arrival& arrival);
  bool announced(int32_t rank, const Arrival& arrival);
  void ready(int32_t rank, const Arrival& arrival);
  bool data(int32_t rank, const Arrival& arrival);
  bool find_lent(int32_t rank, const Arrival& arrival, Lent& lent);
  Incoming& expect(const Message& announced, Operation& receive);
  void fetch(int32_t rank);
  bool fetch_part(int32_t rank, Incoming& incoming);
  static std::byte* room(const Incoming& incoming);
  static void put_down(Incoming& incoming, const std::byte* data, uint64_t size);
  void measure(const Incoming& incoming);
  void note_refusal();
  void complete(Peer& peer, uint64_t id);
  void withdrawn(int32_t rank, uint64_t id);
  void accept(const Message& announced, Operation& receive);
  void resume(const Message& message, Operation& receive);
  static void discard(Peer& peer, uint64_t id);
  void send_control(int32_t rank, const Reply& reply);
  void see_departures();
  void drop(int32_t rank, const sdk::Failure& why);

  // False: the receive has failed, and belongs to its waiter.
  bool fits(Operation& receive, int32_t source, uint64_t tag, uint64_t size);
  void deliver(Operation& receive, int32_t source, uint64_t tag, const std::byte* data, uint64_t size);
  void settle(Operation& operation, Operation::Status status);
  void settle_and_tell(Operation& operation, Operation::Status status);
  void finish(Operation& operation);
  void fail(Operation& operation, const sdk::Failure& why);

  static constexpr uint32_t kCatches = 16;  // receives in a row of which one leaves other ranks their turn
  static constexpr int kLooksAtOnce = 64;   // for one message, before other ranks have their turn
  static constexpr int kTurns = 4;          // of others on this processor, before one waits as one does for long

  const int32_t rank_;
  const int32_t world_size_;
  const View* const view_;
  Peers* const members_;
  const Pools* const pools_;
  Waiting& waiting_;
  CrossMemory* const cross_;
  const std::function<void(const std::string&)> log_;

  BriefLock lock_;
  Matcher matcher_;
  std::list<Held> held_;
  std::map<Operation*, sdk::Notice> noticed_;  // those in flight whose end is to be told
  std::vector<Peer> peers_;
  uint32_t caught_ = 0;  // receives that tried to do without a place
  uint64_t next_order_ = 0;
  uint64_t next_id_ = 0;
  uint32_t departures_ = 0;  // as last seen
  int32_t gone_ = 0;
  Trial trial_;
  std::vector<std::string> notes_;  // to be logged after this turn
  bool has_refused_ = false;        // that a rank cannot be read has been logged
  bool has_finished_ = false;       // something ended during this turn, or is left to be fetched
  Helper helper_;                   // last: its thread uses all of the above
};

// Holds the lock; at its end wakes the threads of this rank if something has ended for them.
class Messages::Turn {
 public:
  explicit Turn(Messages& messages) : messages_(messages) { messages_.lock_.lock(); }
  Turn(Messages& messages, std::adopt_lock_t) : messages_(messages) {}
  ~Turn() {
    const bool wake = std::exchange(messages_.has_finished_, false);
    const std::vector<std::string> notes = std::exchange(messages_.notes_, {});
    messages_.lock_.unlock();
    for (const std::string& each : notes) {
      if (messages_.log_) messages_.log_(each);
    }
    if (wake) messages_.waiting_.wake();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Messages& messages_;
};

}  // namespace backplane::shm
