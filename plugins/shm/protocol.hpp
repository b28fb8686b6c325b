// SPDX-License-Identifier: Apache-2.0
//
// The message protocol of a rank: matches messages and receives, dispatches what arrives, and handles peers that leave.
// Sender and Receiver move the messages of one peer. A rank always empties its channels, so that no message blocks
// another. Every caller holds the lock of Messages.
#pragma once

#include <optional>
#include <vector>

#include "matcher.hpp"
#include "peers.hpp"
#include "receiver.hpp"
#include "sender.hpp"
#include "spin_lock.hpp"

namespace backplane::shm {

class Protocol {
 public:
  // `view` and `members` are null in a group of one. All must outlive this object. `lock` is that of Messages.
  Protocol(int32_t rank, int32_t world_size, const View* view, Peers* members, const Waiter& waiter,
           const SpinLock& lock, InPlace& in_place, Completions& completions);

  // Start an operation. If they throw, it has had no effect.
  void start_send(Operation& send);
  void start_receive(Operation& receive);
  void receive_probed(Operation& receive, const bp_message* probed);
  // Fast path: polls for one message, which is copied without posting the receive. kImpossible: use start_receive. Some
  // receives must not try, so that the other ranks are polled.
  enum class DirectReceive { kNone, kReceived, kImpossible };
  DirectReceive receive_directly(Operation& receive, int polls);
  bool may_receive_directly() { return ++direct_attempts_ % kDirectAttempts != 0; }
  // Ends a pending operation.
  void cancel(Operation& operation, const sdk::Failure& why);

  // As sdk::ProbeTable. The pointer is the handle.
  const Message* probe(int32_t source, uint64_t tag);
  void drop(const bp_message* probed);

  // Sends and receives what can be moved now, for all peers.
  void progress();

 private:
  struct Peer {
    Sender out;
    Receiver in;
    std::optional<sdk::Failure> lost;  // why nothing can arrive any more
  };

  Peer& at(int32_t rank) { return peers_[static_cast<size_t>(rank)]; }
  void send_to_self(Operation& send);
  void match_or_post(Operation& receive);
  void assign(const Message& message, Operation& receive);
  void accept(const Message& announced, Operation& receive);
  void requeue(const Operation& receive);
  const sdk::Failure* reason_to_fail(int32_t source);

  void push(int32_t rank);
  void pull(int32_t rank);
  bool dispatch(int32_t rank, const Arrival& arrival);
  void on_message(int32_t rank, const Arrival& arrival);
  bool on_announce(int32_t rank, const Arrival& arrival);
  void on_withdraw(int32_t rank, uint64_t id);
  void handle_departures();
  void lose_peer(int32_t rank, const sdk::Failure& why);

  static constexpr uint32_t kDirectAttempts = 16;  // of this many receives in a row, one polls the other ranks
  static constexpr int kSpinPolls = 64;            // for one message, before other ranks are polled

  const int32_t rank_;
  const int32_t world_size_;
  Peers* const members_;
  const Waiter& waiter_;
  const SpinLock& lock_;
  Completions& completions_;
  Matcher matcher_;
  std::vector<Peer> peers_;       // by rank; that of this rank is not used
  uint32_t direct_attempts_ = 0;  // receives that tried receive_directly
  uint32_t departures_ = 0;       // as last seen
  int32_t lost_count_ = 0;
};

}  // namespace backplane::shm
