// SPDX-License-Identifier: Apache-2.0
//
// The sends to one peer. A message of up to kEagerLimit bytes (kMaxEager with more ranks than processors) is copied
// into the channel, which completes its send, as long as unreceived messages at the receiver stay below kWindow. Any
// other message is announced and stays in the sender's buffer until its receiver is ready; then it is sent in pieces
// that stay in the cache, unless the receiver has read it in place.
//
// Sends keep their order: while one waits for room, later ones wait behind it. Every caller holds the lock of Messages,
// and wakes the peer if the outbox has published something.
#pragma once

#include <deque>
#include <map>

#include "completions.hpp"
#include "in_place.hpp"
#include "transport.hpp"

namespace backplane::shm {

class Sender {
 public:
  // `spins`: of the waiting threads (progress.hpp). `in_place` and `completions` must outlive this object.
  Sender(const Outbox& out, bool spins, const InPlace& in_place, Completions& completions)
      : out_(out), spins_(spins), in_place_(in_place), completions_(completions) {}

  Outbox& outbox() { return out_; }

  // Puts the message, or its announcement, into the channel if `may_put` and there is room, or queues it. Throws
  // BP_RESOURCE.
  void start(Operation& send, bool may_put);
  // Puts what waits for room.
  void push();
  bool has_waiting() const { return !withdrawals_.empty() || !queue_.empty() || !ready_ids_.empty(); }
  // The receiver is ready: it needs the message, or has no need of it any more.
  void on_ready(uint64_t id, bool is_needed);
  // Forgets a send, which the caller fails. The peer is told if the message was announced.
  void withdraw(const Operation& send);
  // The peer is lost: fails all sends.
  void fail_all(const sdk::Failure& why);

 private:
  struct Announced {
    Operation* send;
    uint64_t offset;  // bytes sent
    bool is_exposed;  // the receiver may be reading the buffer
  };

  bool may_be_eager(const Operation& send) const;
  bool put(Operation& send);
  bool announce(Operation& send);
  void push_pieces();

  Outbox out_;
  const bool spins_;
  const InPlace& in_place_;
  Completions& completions_;
  std::deque<uint64_t> withdrawals_;         // ids to be withdrawn, waiting for room
  std::deque<Operation*> queue_;             // waiting for room
  std::map<uint64_t, Announced> announced_;  // by id
  std::deque<uint64_t> ready_ids_;           // of `announced_`: the receiver needs the message
  uint64_t last_id_ = 0;
};

}  // namespace backplane::shm
