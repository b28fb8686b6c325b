// SPDX-License-Identifier: Apache-2.0
//
// The half of Messages that moves things on: what leaves for a peer, and what has come from it.
#include <algorithm>
#include <cstring>

#include "messages.hpp"

namespace backplane::shm {

void Messages::progress() {
  if (world_size_ == 1 || waiting_.aborted()) return;
  // Whoever goes has put all its messages into the channels before it says so.
  const uint32_t departures = members_->departures();
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    push(rank);
    pull(rank);
    fetch(rank);
  }
  if (departures != departures_) see_departures();
}

// What is under way comes within a few hundred nanoseconds, or when another rank has had its turn on this processor: if
// it is what this receive waits for, and nobody else waits, it needs no place among the receives.
Messages::Caught Messages::catch_next(Operation& receive, int looks) {
  if (receive.peer == BP_ANY_SOURCE || receive.peer == rank_ || !matcher_.is_empty()) return Caught::kCannot;
  Peer& peer = at(receive.peer);
  if (peer.gone) return Caught::kCannot;
  Arrival arrival;
  Inbox::Look look = Inbox::Look::kNothing;
  for (int i = 0; i < looks && look == Inbox::Look::kNothing && !lock_.is_wanted(); ++i) {
    look = peer.in.look(arrival);
  }
  if (look == Inbox::Look::kNothing) return Caught::kNothing;
  const bool is_whole = arrival.kind == Kind::kInline || arrival.kind == Kind::kEager;
  if (look != Inbox::Look::kSomething || !is_whole || !sdk::matches_tag(receive.tag, arrival.tag))
    return Caught::kCannot;
  deliver(receive, receive.peer, arrival.tag, arrival.data, arrival.length);
  peer.in.pop();
  peer.in.give_credit(arrival.length);
  if (peer.in.release()) members_->wake(receive.peer);
  return Caught::kIt;
}

void Messages::push(int32_t rank) {
  Peer& peer = at(rank);
  if (peer.controls.empty() && peer.sends.empty() && peer.wanted.empty()) return;
  bool has_put = false;
  while (!peer.controls.empty() && put_control(peer)) has_put = true;
  while (peer.controls.empty() && !peer.sends.empty() && put(peer, *peer.sends.front())) {
    peer.sends.pop_front();
    has_put = true;
  }
  has_put = push_pieces(peer) || has_put;
  if (has_put) members_->wake(rank);
}

// The first one; false: there is no room. What has been fetched is received only then: its receiver may not look at the
// group again, or leave it. If its sender has taken back this one or another meanwhile, it is told to send it after
// all, which it does unless it has withdrawn it.
bool Messages::put_control(Peer& peer) {
  Reply reply = peer.controls.front();
  const auto found = reply.kind == Kind::kReady ? peer.coming.find(reply.id) : peer.coming.end();
  Incoming* const fetched = found != peer.coming.end() && found->second.is_owed ? &found->second : nullptr;
  const bool is_void = fetched != nullptr && fetched->lent.data != nullptr && peer.in.has_revoked(fetched->lent.loan);
  if (is_void) reply.size = 1;
  if (!peer.out.put_control(reply.kind, reply.tag, reply.id, reply.size)) return false;
  peer.controls.pop_front();
  if (fetched == nullptr) return true;
  fetched->is_owed = false;
  if (is_void) {
    fetched->give_up();
    return true;
  }
  measure(*fetched);
  fetched->lent = {};
  complete(peer, reply.id);
  return true;
}

bool Messages::push_pieces(Peer& peer) {
  bool has_put = false;
  while (!peer.wanted.empty()) {
    Outgoing& outgoing = peer.announced.at(peer.wanted.front());
    Operation& send = *outgoing.send;
    const uint64_t size = std::min(kPiece, send.size - outgoing.offset);
    if (!peer.out.put_piece(Kind::kData, send.tag, send.id, send.data + outgoing.offset, size)) break;
    has_put = true;
    outgoing.offset += size;
    if (outgoing.offset < send.size) continue;
    peer.announced.erase(peer.wanted.front());
    peer.wanted.pop_front();
    finish(send);
  }
  return has_put;
}

void Messages::send_control(int32_t rank, const Reply& reply) {
  Peer& peer = at(rank);
  if (peer.gone) return;
  try {
    open_channel(rank);
  } catch (const sdk::Failure& why) {
    return drop(rank, why);
  }
  peer.controls.push_back(reply);
  push(rank);
}

void Messages::pull(int32_t rank) {
  Peer& peer = at(rank);
  if (peer.gone) return;
  Reading reading(peer.in, lock_);
  Arrival arrival;
  for (;;) {
    const Inbox::Look look = reading.next(arrival);
    if (look == Inbox::Look::kNothing) break;
    if (look == Inbox::Look::kNonsense || !take(rank, arrival)) {
      return drop(rank,
                  sdk::Failure(BP_PEER_LOST,
                               "rank " + std::to_string(rank) + " has written nonsense into the shared segment", rank));
    }
    if (peer.gone) return;  // there was no memory to answer it
    if (reading.pop()) members_->wake(rank);
  }
  if (reading.end()) members_->wake(rank);
}

// False: it makes no sense.
bool Messages::take(int32_t rank, const Arrival& arrival) {
  switch (arrival.kind) {
    case Kind::kInline:
    case Kind::kEager:
      arrived(rank, arrival);
      return true;
    case Kind::kAnnounce:
      return announced(rank, arrival);
    case Kind::kReady:
      ready(rank, arrival);
      return true;
    case Kind::kData:
      return data(rank, arrival);
    case Kind::kWithdraw:
      withdrawn(rank, arrival.id);
      return true;
  }
  return false;
}

void Messages::arrived(int32_t rank, const Arrival& arrival) {
  if (Operation* const receive = matcher_.take_receive(rank, arrival.tag); receive != nullptr) {
    at(rank).in.give_credit(arrival.length);
    return deliver(*receive, rank, arrival.tag, arrival.data, arrival.length);
  }
  Message message;
  message.source = rank;
  message.tag = arrival.tag;
  message.size = arrival.length;
  message.bytes.assign(arrival.data, arrival.data + arrival.length);
  matcher_.add(std::move(message));
}

bool Messages::announced(int32_t rank, const Arrival& arrival) {
  if (arrival.id <= at(rank).last_id) return false;
  at(rank).last_id = arrival.id;
  Message message;
  message.form = Message::Form::kAnnounced;
  message.source = rank;
  message.tag = arrival.tag;
  message.size = arrival.size;
  message.id = arrival.id;
  if (!find_lent(rank, arrival, message.lent)) return false;
  if (Operation* const receive = matcher_.take_receive(rank, arrival.tag); receive != nullptr) {
    accept(message, *receive);
  } else {
    matcher_.add(std::move(message));
  }
  return true;
}

void Messages::accept(const Message& announced, Operation& receive) {
  const int32_t rank = announced.source;
  const Reply no_need = {Kind::kReady, announced.tag, announced.id, 0};
  if (!fits(receive, rank, announced.tag, announced.size)) return send_control(rank, no_need);
  receive.where = Operation::Where::kComing;
  receive.source = rank;
  receive.id = announced.id;
  const Incoming& incoming = expect(announced, receive);
  if (incoming.is_owed) return send_control(rank, no_need);
  if (incoming.lent.data == nullptr) return send_control(rank, {Kind::kReady, announced.tag, announced.id, 1});
  at(rank).lent.push_back(announced.id);
  has_finished_ = true;  // who sleeps must look: it may be the receive of a program that does not wait
}

// Where the next bytes go; null: nowhere.
std::byte* Messages::room(const Incoming& incoming) {
  if (incoming.receive != nullptr) return incoming.receive->data + incoming.offset;
  return incoming.is_unwanted ? nullptr : incoming.stash.get() + incoming.offset;
}

void Messages::put_down(Incoming& incoming, const std::byte* data, uint64_t size) {
  std::byte* const to = room(incoming);
  if (to != nullptr) std::memcpy(to, data, size);
  incoming.offset += size;
}

// All of it has come.
void Messages::complete(Peer& peer, uint64_t id) {
  const auto found = peer.coming.find(id);
  Operation* const receive = found->second.receive;
  if (receive != nullptr) finish(*receive);
  if (receive != nullptr || found->second.is_unwanted) peer.coming.erase(found);
}

void Messages::ready(int32_t rank, const Arrival& arrival) {
  Peer& peer = at(rank);
  const auto found = peer.announced.find(arrival.id);
  if (found == peer.announced.end()) return;  // withdrawn meanwhile
  if (arrival.size == 0) {
    Operation& send = *found->second.send;
    std::erase(peer.wanted, arrival.id);
    peer.announced.erase(found);
    return finish(send);
  }
  if (std::find(peer.wanted.begin(), peer.wanted.end(), arrival.id) != peer.wanted.end()) return;
  if (found->second.send->size == 0) return;
  peer.wanted.push_back(arrival.id);
  push(rank);
}

bool Messages::data(int32_t rank, const Arrival& arrival) {
  Peer& peer = at(rank);
  const auto found = peer.coming.find(arrival.id);
  if (found == peer.coming.end()) return false;
  Incoming& incoming = found->second;
  if (incoming.lent.data != nullptr || arrival.length > incoming.size - incoming.offset) return false;
  put_down(incoming, arrival.data, arrival.length);
  if (incoming.has_come()) measure(incoming);
  if (incoming.has_come()) complete(peer, arrival.id);
  return true;
}

// A receive takes a message of which a part has come, for one that gave up.
void Messages::resume(const Message& message, Operation& receive) {
  Peer& peer = at(message.source);
  const auto found = peer.coming.find(message.id);
  Incoming& incoming = found->second;
  if (!fits(receive, message.source, incoming.tag, incoming.size)) return discard(peer, message.id);
  if (incoming.offset > 0) std::memcpy(receive.data, incoming.stash.get(), incoming.offset);
  incoming.stash.reset();
  if (incoming.has_come()) {
    peer.coming.erase(found);
    return finish(receive);
  }
  receive.where = Operation::Where::kComing;
  receive.source = message.source;
  receive.id = message.id;
  incoming.receive = &receive;
}

// Nobody wants what still comes of it.
void Messages::discard(Peer& peer, uint64_t id) {
  const auto found = peer.coming.find(id);
  found->second.stash.reset();
  found->second.is_unwanted = true;
  if (found->second.has_come()) peer.coming.erase(found);
}

void Messages::withdrawn(int32_t rank, uint64_t id) {
  const auto is_it = [rank, id](const Message& each) {
    const bool has_id = each.form == Message::Form::kAnnounced || each.form == Message::Form::kComing;
    return has_id && each.source == rank && each.id == id;
  };
  matcher_.remove_messages(is_it);
  lose_held(is_it, sdk::taken_back());
  Peer& peer = at(rank);
  const auto found = peer.coming.find(id);
  if (found == peer.coming.end()) return;
  Operation* const receive = found->second.receive;
  std::erase(peer.lent, id);
  peer.coming.erase(found);
  if (receive == nullptr) return;
  if (receive->is_probed) return fail(*receive, sdk::taken_back());
  place(*receive);
}

void Messages::see_departures() {
  departures_ = members_->departures();
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_ || at(rank).gone || members_->is_present(rank) || !members_->has_come(rank)) continue;
    pull(rank);
    if (!at(rank).gone) drop(rank, members_->failure(rank));
  }
}

void Messages::drop(int32_t rank, const sdk::Failure& why) {
  Peer& peer = at(rank);
  peer.gone.emplace(why);
  ++gone_;
  for (Operation* const send : peer.sends) fail(*send, why);
  for (const auto& [id, outgoing] : peer.announced) {
    if (outgoing.is_lent) peer.out.revoke();
    fail(*outgoing.send, why);
  }
  for (auto& [id, incoming] : peer.coming) {
    if (incoming.receive != nullptr) fail(*incoming.receive, why);
  }
  const auto cannot_come = [&peer, rank](const Message& each) {
    if (each.source != rank) return false;
    if (each.form == Message::Form::kAnnounced) return true;
    if (each.form != Message::Form::kComing) return false;
    return !peer.coming.at(each.id).has_come();
  };
  matcher_.remove_messages(cannot_come);
  lose_held(cannot_come, why);
  peer.sends.clear();
  peer.announced.clear();
  peer.wanted.clear();
  peer.lent.clear();
  peer.controls.clear();
  std::erase_if(peer.coming,
                [](const auto& each) { return each.second.receive != nullptr || !each.second.has_come(); });
  const bool is_last = gone_ == world_size_ - 1;
  for (Operation* const receive : matcher_.take_receives([rank, is_last](const Operation& each) {
         return each.peer == rank || (each.peer == BP_ANY_SOURCE && is_last);
       })) {
    fail(*receive, why);
  }
}

}  // namespace backplane::shm
