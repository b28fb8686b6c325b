// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <string>

#include "backplane/sdk/peer_failures.hpp"
#include "backplane/sdk/probe.hpp"

namespace backplane::shm {

Protocol::Protocol(int32_t rank, int32_t world_size, const View* view, Peers* members, const Waiter& waiter,
                   const SpinLock& lock, InPlace& in_place, Completions& completions)
    : rank_(rank), world_size_(world_size), members_(members), waiter_(waiter), lock_(lock), completions_(completions) {
  peers_.reserve(static_cast<size_t>(world_size));
  for (int32_t peer = 0; peer < world_size; ++peer) {
    Outbox out;
    Inbox in;
    if (peer != rank) {
      const bool membarrier = members->uses_membarrier();
      out = Outbox(view->channel(peer, rank), view->ring(peer, rank), view->opened(peer, rank), membarrier);
      in = Inbox(view->channel(rank, peer), view->ring(rank, peer), view->opened(rank, peer), membarrier);
    }
    peers_.push_back(
        {Sender(out, waiter.spins(), in_place, completions), Receiver(peer, in, in_place, completions), {}});
  }
}

void Protocol::start_send(Operation& send) {
  if (send.peer == rank_) return send_to_self(send);
  Peer& peer = at(send.peer);
  if (members_->departures() != departures_) handle_departures();
  if (peer.lost) throw sdk::Failure(*peer.lost);
  const uint32_t before = peer.out.outbox().heads();
  peer.out.start(send, !peer.in.owes_replies());
  if (peer.out.outbox().heads() != before) members_->wake(send.peer);
}

void Protocol::send_to_self(Operation& send) {
  if (Operation* const receive = matcher_.take_receive(rank_, send.tag); receive != nullptr) {
    completions_.deliver(*receive, rank_, send.tag, send.data, send.size);
    return completions_.finish(send);
  }
  Message message;
  message.source = rank_;
  message.tag = send.tag;
  message.size = send.size;
  message.state = Message::State::kLocal;
  message.sender = &send;
  matcher_.add(std::move(message));
  send.stage = Operation::Stage::kLocal;
}

void Protocol::start_receive(Operation& receive) {
  if (waiter_.spins() && may_receive_directly() && receive_directly(receive, kSpinPolls) == DirectReceive::kReceived)
    return;
  progress();
  matcher_.enter(receive);
  match_or_post(receive);
}

// The next message of a peer usually arrives within a few hundred nanoseconds, or after another rank's time slice. It
// must match this receive, and there must be no others.
Protocol::DirectReceive Protocol::receive_directly(Operation& receive, int polls) {
  if (receive.peer == BP_ANY_SOURCE || receive.peer == rank_ || !matcher_.is_empty()) return DirectReceive::kImpossible;
  Peer& peer = at(receive.peer);
  if (peer.lost) return DirectReceive::kImpossible;
  Inbox& in = peer.in.inbox();
  Arrival arrival;
  Inbox::Peek peeked = Inbox::Peek::kNone;
  for (int i = 0; i < polls && peeked == Inbox::Peek::kNone && !lock_.is_contended(); ++i) peeked = in.peek(arrival);
  if (peeked == Inbox::Peek::kNone) return DirectReceive::kNone;
  const bool is_whole = arrival.kind == Kind::kInline || arrival.kind == Kind::kEager;
  if (peeked != Inbox::Peek::kMessage || !is_whole || !sdk::matches_tag(receive.tag, arrival.tag))
    return DirectReceive::kImpossible;
  completions_.deliver(receive, receive.peer, arrival.tag, arrival.data, arrival.length);
  in.pop();
  in.return_credits(arrival.length);
  if (in.release()) members_->wake(receive.peer);
  return DirectReceive::kReceived;
}

// Matches a receive with the oldest message, or posts it.
void Protocol::match_or_post(Operation& receive) {
  const std::optional<Message> message = matcher_.take_message(receive.peer, receive.tag);
  if (message) return assign(*message, receive);
  if (const sdk::Failure* const why = reason_to_fail(receive.peer)) return completions_.fail(receive, *why);
  receive.stage = Operation::Stage::kPosted;
  matcher_.post(receive);
}

void Protocol::assign(const Message& message, Operation& receive) {
  switch (message.state) {
    case Message::State::kComplete:
      at(message.source).in.inbox().return_credits(message.size);
      return completions_.deliver(receive, message.source, message.tag, message.bytes.data(), message.size);
    case Message::State::kAnnounced:
      return accept(message, receive);
    case Message::State::kLocal:
      completions_.deliver(receive, rank_, message.tag, message.sender->data, message.size);
      return completions_.finish(*message.sender);
    case Message::State::kIncoming:
      return at(message.source).in.resume(message.id, receive);
  }
}

void Protocol::accept(const Message& announced, Operation& receive) {
  at(announced.source).in.accept(announced, receive);
  push(announced.source);
}

// Why no message can arrive from there any more, or null.
const sdk::Failure* Protocol::reason_to_fail(int32_t source) {
  const bool any = source == BP_ANY_SOURCE;
  if (any && (world_size_ == 1 || lost_count_ < world_size_ - 1)) return nullptr;
  const std::optional<sdk::Failure>& lost = at(any ? (rank_ == 0 ? 1 : 0) : source).lost;
  return lost ? &*lost : nullptr;
}

void Protocol::receive_probed(Operation& receive, const bp_message* probed) {
  const Message message = matcher_.take_probed(probed);
  receive.is_probed = true;
  receive.peer = message.source;
  receive.tag = message.tag;
  if (message.lost) return completions_.fail(receive, *message.lost);
  assign(message, receive);
}

const Message* Protocol::probe(int32_t source, uint64_t tag) {
  progress();
  const Message* const message = matcher_.probe(source, tag);
  if (message != nullptr) return message;
  if (const sdk::Failure* const why = reason_to_fail(source)) throw sdk::Failure(*why);
  return nullptr;
}

// After an abort the sender is not notified.
void Protocol::drop(const bp_message* probed) {
  const Message dropped = matcher_.take_probed(probed);
  if (dropped.lost || waiter_.aborted()) return;
  switch (dropped.state) {
    case Message::State::kComplete:
      return at(dropped.source).in.inbox().return_credits(dropped.size);
    case Message::State::kLocal:
      return completions_.finish(*dropped.sender);
    case Message::State::kIncoming:
      return at(dropped.source).in.discard(dropped.id);
    case Message::State::kAnnounced:
      at(dropped.source).in.decline(dropped.id);
      push(dropped.source);
  }
}

void Protocol::cancel(Operation& operation, const sdk::Failure& why) {
  if (!operation.is_pending()) return;
  switch (operation.stage) {
    case Operation::Stage::kPosted:
      matcher_.remove(operation);
      break;
    case Operation::Stage::kIncoming:
      requeue(operation);
      break;
    case Operation::Stage::kLocal:
      matcher_.remove_messages([&operation](const Message& each) { return each.sender == &operation; },
                               sdk::taken_back());
      break;
    default:
      at(operation.peer).out.withdraw(operation);
      push(operation.peer);
  }
  completions_.fail(operation, why);
}

// A receive is cancelled while its message arrives. The message goes to the next matching receive, or is discarded if
// there is no memory to stash it.
void Protocol::requeue(const Operation& receive) {
  Receiver& in = at(receive.source).in;
  try {
    if (!waiter_.aborted()) return matcher_.add_oldest(in.stash(receive));
  } catch (const std::bad_alloc&) {
  }
  in.discard(receive.id);
}

void Protocol::progress() {
  if (world_size_ == 1 || waiter_.aborted()) return;
  // A rank puts all its messages into the channels before it publishes its departure.
  const uint32_t departures = members_->departures();
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    push(rank);
    pull(rank);
    if (at(rank).in.fetch()) push(rank);
  }
  if (departures != departures_) handle_departures();
}

// Replies come first, so that no stream of messages keeps them waiting.
void Protocol::push(int32_t rank) {
  Peer& peer = at(rank);
  if (!peer.in.owes_replies() && !peer.out.has_waiting()) return;
  Outbox& out = peer.out.outbox();
  const uint32_t before = out.heads();
  try {
    if (peer.in.put_replies(out)) peer.out.push();
  } catch (const sdk::Failure& why) {
    return lose_peer(rank, why);
  }
  if (out.heads() != before) members_->wake(rank);
}

void Protocol::pull(int32_t rank) {
  Peer& peer = at(rank);
  if (peer.lost) return;
  ReadBatch reading(peer.in.inbox(), lock_);
  Arrival arrival;
  for (;;) {
    const Inbox::Peek peeked = reading.next(arrival);
    if (peeked == Inbox::Peek::kNone) break;
    if (peeked == Inbox::Peek::kMalformed || !dispatch(rank, arrival)) {
      return lose_peer(
          rank, sdk::Failure(BP_PEER_LOST,
                             "rank " + std::to_string(rank) + " wrote malformed data into the shared segment", rank));
    }
    if (peer.lost) return;  // out of memory for a reply
    if (reading.pop()) members_->wake(rank);
  }
  if (reading.end()) members_->wake(rank);
}

// Returns false if the message is malformed.
bool Protocol::dispatch(int32_t rank, const Arrival& arrival) {
  switch (arrival.kind) {
    case Kind::kInline:
    case Kind::kEager:
      on_message(rank, arrival);
      return true;
    case Kind::kAnnounce:
      return on_announce(rank, arrival);
    case Kind::kReady:
      at(rank).out.on_ready(arrival.id, arrival.size != 0);
      push(rank);
      return true;
    case Kind::kData:
      return at(rank).in.on_data(arrival);
    case Kind::kWithdraw:
      on_withdraw(rank, arrival.id);
      return true;
  }
  return false;
}

void Protocol::on_message(int32_t rank, const Arrival& arrival) {
  if (Operation* const receive = matcher_.take_receive(rank, arrival.tag); receive != nullptr) {
    at(rank).in.inbox().return_credits(arrival.length);
    return completions_.deliver(*receive, rank, arrival.tag, arrival.data, arrival.length);
  }
  Message message;
  message.source = rank;
  message.tag = arrival.tag;
  message.size = arrival.length;
  message.bytes.assign(arrival.data, arrival.data + arrival.length);
  matcher_.add(std::move(message));
}

bool Protocol::on_announce(int32_t rank, const Arrival& arrival) {
  std::optional<Message> message = at(rank).in.announced(arrival);
  if (!message) return false;
  if (Operation* const receive = matcher_.take_receive(rank, arrival.tag); receive != nullptr) {
    accept(*message, *receive);
  } else {
    matcher_.add(*std::move(message));
  }
  return true;
}

void Protocol::on_withdraw(int32_t rank, uint64_t id) {
  const auto is_it = [rank, id](const Message& each) {
    const bool has_id = each.state == Message::State::kAnnounced || each.state == Message::State::kIncoming;
    return has_id && each.source == rank && each.id == id;
  };
  matcher_.remove_messages(is_it, sdk::taken_back());
  Operation* const receive = at(rank).in.withdraw(id);
  if (receive == nullptr) return;
  if (receive->is_probed) return completions_.fail(*receive, sdk::taken_back());
  match_or_post(*receive);
}

void Protocol::handle_departures() {
  departures_ = members_->departures();
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_ || at(rank).lost || members_->is_present(rank) || !members_->has_joined(rank)) continue;
    pull(rank);
    if (!at(rank).lost) lose_peer(rank, members_->failure(rank));
  }
}

void Protocol::lose_peer(int32_t rank, const sdk::Failure& why) {
  Peer& peer = at(rank);
  peer.lost.emplace(why);
  ++lost_count_;
  peer.out.fail_all(why);
  const auto cannot_come = [&peer, rank](const Message& each) {
    if (each.source != rank) return false;
    if (each.state == Message::State::kAnnounced) return true;
    return each.state == Message::State::kIncoming && !peer.in.has_joined(each.id);
  };
  matcher_.remove_messages(cannot_come, why);
  peer.in.fail_all(why);
  const bool is_last = lost_count_ == world_size_ - 1;
  for (Operation* const receive : matcher_.take_receives([rank, is_last](const Operation& each) {
         return each.peer == rank || (each.peer == BP_ANY_SOURCE && is_last);
       })) {
    completions_.fail(*receive, why);
  }
}

}  // namespace backplane::shm
