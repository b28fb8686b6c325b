// SPDX-License-Identifier: Apache-2.0
//
// The part of Messages that makes progress: sending to and receiving from channels.
#include <algorithm>
#include <cstring>

#include "messages.hpp"

namespace backplane::shm {

void Messages::progress() {
  if (world_size_ == 1 || waiter_.aborted()) return;
  // A rank puts all its messages into the channels before it publishes its departure.
  const uint32_t departures = members_->departures();
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    push(rank);
    pull(rank);
    fetch(rank);
  }
  if (departures != departures_) handle_departures();
}

// Fast path: the next message of a peer usually arrives within a few hundred nanoseconds, or after another rank's time
// slice. If it matches this receive and there are no others, it is copied without posting the receive.
Messages::DirectReceive Messages::receive_directly(Operation& receive, int polls) {
  if (receive.peer == BP_ANY_SOURCE || receive.peer == rank_ || !matcher_.is_empty()) return DirectReceive::kImpossible;
  Peer& peer = at(receive.peer);
  if (peer.lost) return DirectReceive::kImpossible;
  Arrival arrival;
  Inbox::Peek peeked = Inbox::Peek::kNone;
  for (int i = 0; i < polls && peeked == Inbox::Peek::kNone && !lock_.is_contended(); ++i) {
    peeked = peer.in.peek(arrival);
  }
  if (peeked == Inbox::Peek::kNone) return DirectReceive::kNone;
  const bool is_whole = arrival.kind == Kind::kInline || arrival.kind == Kind::kEager;
  if (peeked != Inbox::Peek::kMessage || !is_whole || !sdk::matches_tag(receive.tag, arrival.tag))
    return DirectReceive::kImpossible;
  deliver(receive, receive.peer, arrival.tag, arrival.data, arrival.length);
  peer.in.pop();
  peer.in.return_credits(arrival.length);
  if (peer.in.release()) members_->wake(receive.peer);
  return DirectReceive::kReceived;
}

void Messages::push(int32_t rank) {
  Peer& peer = at(rank);
  if (peer.controls.empty() && peer.sends.empty() && peer.ready_ids.empty()) return;
  bool has_put = false;
  while (!peer.controls.empty() && put_control(peer)) has_put = true;
  while (peer.controls.empty() && !peer.sends.empty() && put(peer, *peer.sends.front())) {
    peer.sends.pop_front();
    has_put = true;
  }
  has_put = push_pieces(peer) || has_put;
  if (has_put) members_->wake(rank);
}

// Sends the first control message. Returns false if there is no room. A message read in place counts as received only
// when its reply is in the channel, because its receiver may leave the group, or never poll it again. If the sender has
// revoked an exposure meanwhile, it is asked to send the message. It does so unless it has withdrawn the message.
bool Messages::put_control(Peer& peer) {
  Reply reply = peer.controls.front();
  const auto found = reply.kind == Kind::kReady ? peer.incoming_by_id.find(reply.id) : peer.incoming_by_id.end();
  Incoming* const fetched =
      found != peer.incoming_by_id.end() && found->second.is_reply_pending ? &found->second : nullptr;
  const bool is_void =
      fetched != nullptr && fetched->remote.data != nullptr && peer.in.has_revoked(fetched->remote.exposure);
  if (is_void) reply.size = 1;
  if (!peer.out.put_control(reply.kind, reply.tag, reply.id, reply.size)) return false;
  peer.controls.pop_front();
  if (fetched == nullptr) return true;
  fetched->is_reply_pending = false;
  if (is_void) {
    fetched->fall_back();
    return true;
  }
  measure(*fetched);
  fetched->remote = {};
  complete(peer, reply.id);
  return true;
}

bool Messages::push_pieces(Peer& peer) {
  bool has_put = false;
  while (!peer.ready_ids.empty()) {
    Outgoing& outgoing = peer.announced.at(peer.ready_ids.front());
    Operation& send = *outgoing.send;
    const uint64_t size = std::min(kPiece, send.size - outgoing.offset);
    if (!peer.out.put_piece(Kind::kData, send.tag, send.id, send.data + outgoing.offset, size)) break;
    has_put = true;
    outgoing.offset += size;
    if (outgoing.offset < send.size) continue;
    peer.announced.erase(peer.ready_ids.front());
    peer.ready_ids.pop_front();
    finish(send);
  }
  return has_put;
}

void Messages::send_control(int32_t rank, const Reply& reply) {
  Peer& peer = at(rank);
  if (peer.lost) return;
  try {
    open_channel(rank, false);
  } catch (const sdk::Failure& why) {
    return lose_peer(rank, why);
  }
  peer.controls.push_back(reply);
  push(rank);
}

void Messages::pull(int32_t rank) {
  Peer& peer = at(rank);
  if (peer.lost) return;
  ReadBatch reading(peer.in, lock_);
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
bool Messages::dispatch(int32_t rank, const Arrival& arrival) {
  switch (arrival.kind) {
    case Kind::kInline:
    case Kind::kEager:
      on_message(rank, arrival);
      return true;
    case Kind::kAnnounce:
      return on_announce(rank, arrival);
    case Kind::kReady:
      on_ready(rank, arrival);
      return true;
    case Kind::kData:
      return on_data(rank, arrival);
    case Kind::kWithdraw:
      on_withdraw(rank, arrival.id);
      return true;
  }
  return false;
}

void Messages::on_message(int32_t rank, const Arrival& arrival) {
  if (Operation* const receive = matcher_.take_receive(rank, arrival.tag); receive != nullptr) {
    at(rank).in.return_credits(arrival.length);
    return deliver(*receive, rank, arrival.tag, arrival.data, arrival.length);
  }
  Message message;
  message.source = rank;
  message.tag = arrival.tag;
  message.size = arrival.length;
  message.bytes.assign(arrival.data, arrival.data + arrival.length);
  matcher_.add(std::move(message));
}

bool Messages::on_announce(int32_t rank, const Arrival& arrival) {
  if (arrival.id <= at(rank).last_id) return false;
  at(rank).last_id = arrival.id;
  Message message;
  message.state = Message::State::kAnnounced;
  message.source = rank;
  message.tag = arrival.tag;
  message.size = arrival.size;
  message.id = arrival.id;
  if (!find_exposed(rank, arrival, message.remote)) return false;
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
  receive.stage = Operation::Stage::kIncoming;
  receive.source = rank;
  receive.id = announced.id;
  const Incoming& incoming = start_incoming(announced, receive);
  if (incoming.is_reply_pending) return send_control(rank, no_need);
  if (incoming.remote.data == nullptr) return send_control(rank, {Kind::kReady, announced.tag, announced.id, 1});
  at(rank).to_fetch.push_back(announced.id);
  has_finished_ = true;  // sleeping threads must poll: the receive may belong to a program that does not wait
}

// Where the next bytes go; null: discarded.
std::byte* Messages::room(const Incoming& incoming) {
  if (incoming.receive != nullptr) return incoming.receive->data + incoming.offset;
  return incoming.is_discarded ? nullptr : incoming.stash.get() + incoming.offset;
}

void Messages::append(Incoming& incoming, const std::byte* data, uint64_t size) {
  std::byte* const to = room(incoming);
  if (to != nullptr) std::memcpy(to, data, size);
  incoming.offset += size;
}

// The message has arrived completely.
void Messages::complete(Peer& peer, uint64_t id) {
  const auto found = peer.incoming_by_id.find(id);
  Operation* const receive = found->second.receive;
  if (receive != nullptr) finish(*receive);
  if (receive != nullptr || found->second.is_discarded) peer.incoming_by_id.erase(found);
}

void Messages::on_ready(int32_t rank, const Arrival& arrival) {
  Peer& peer = at(rank);
  const auto found = peer.announced.find(arrival.id);
  if (found == peer.announced.end()) return;  // withdrawn meanwhile
  if (arrival.size == 0) {
    Operation& send = *found->second.send;
    std::erase(peer.ready_ids, arrival.id);
    peer.announced.erase(found);
    return finish(send);
  }
  if (std::find(peer.ready_ids.begin(), peer.ready_ids.end(), arrival.id) != peer.ready_ids.end()) return;
  if (found->second.send->size == 0) return;
  peer.ready_ids.push_back(arrival.id);
  push(rank);
}

bool Messages::on_data(int32_t rank, const Arrival& arrival) {
  Peer& peer = at(rank);
  const auto found = peer.incoming_by_id.find(arrival.id);
  if (found == peer.incoming_by_id.end()) return false;
  Incoming& incoming = found->second;
  if (incoming.remote.data != nullptr || arrival.length > incoming.size - incoming.offset) return false;
  append(incoming, arrival.data, arrival.length);
  if (incoming.has_joined()) measure(incoming);
  if (incoming.has_joined()) complete(peer, arrival.id);
  return true;
}

// A receive takes over a partly received message from a cancelled one.
void Messages::resume(const Message& message, Operation& receive) {
  Peer& peer = at(message.source);
  const auto found = peer.incoming_by_id.find(message.id);
  Incoming& incoming = found->second;
  if (!fits(receive, message.source, incoming.tag, incoming.size)) return discard(peer, message.id);
  if (incoming.offset > 0) std::memcpy(receive.data, incoming.stash.get(), incoming.offset);
  incoming.stash.reset();
  if (incoming.has_joined()) {
    peer.incoming_by_id.erase(found);
    return finish(receive);
  }
  receive.stage = Operation::Stage::kIncoming;
  receive.source = message.source;
  receive.id = message.id;
  incoming.receive = &receive;
}

// Discards the rest of a message.
void Messages::discard(Peer& peer, uint64_t id) {
  const auto found = peer.incoming_by_id.find(id);
  found->second.stash.reset();
  found->second.is_discarded = true;
  if (found->second.has_joined()) peer.incoming_by_id.erase(found);
}

void Messages::on_withdraw(int32_t rank, uint64_t id) {
  const auto is_it = [rank, id](const Message& each) {
    const bool has_id = each.state == Message::State::kAnnounced || each.state == Message::State::kIncoming;
    return has_id && each.source == rank && each.id == id;
  };
  matcher_.remove_messages(is_it);
  fail_probed(is_it, sdk::taken_back());
  Peer& peer = at(rank);
  const auto found = peer.incoming_by_id.find(id);
  if (found == peer.incoming_by_id.end()) return;
  Operation* const receive = found->second.receive;
  std::erase(peer.to_fetch, id);
  peer.incoming_by_id.erase(found);
  if (receive == nullptr) return;
  if (receive->is_probed) return fail(*receive, sdk::taken_back());
  match_or_post(*receive);
}

void Messages::handle_departures() {
  departures_ = members_->departures();
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_ || at(rank).lost || members_->is_present(rank) || !members_->has_joined(rank)) continue;
    pull(rank);
    if (!at(rank).lost) lose_peer(rank, members_->failure(rank));
  }
}

void Messages::lose_peer(int32_t rank, const sdk::Failure& why) {
  Peer& peer = at(rank);
  peer.lost.emplace(why);
  ++lost_count_;
  for (Operation* const send : peer.sends) fail(*send, why);
  for (const auto& [id, outgoing] : peer.announced) {
    if (outgoing.is_exposed) peer.out.revoke();
    fail(*outgoing.send, why);
  }
  for (auto& [id, incoming] : peer.incoming_by_id) {
    if (incoming.receive != nullptr) fail(*incoming.receive, why);
  }
  const auto cannot_come = [&peer, rank](const Message& each) {
    if (each.source != rank) return false;
    if (each.state == Message::State::kAnnounced) return true;
    if (each.state != Message::State::kIncoming) return false;
    return !peer.incoming_by_id.at(each.id).has_joined();
  };
  matcher_.remove_messages(cannot_come);
  fail_probed(cannot_come, why);
  peer.sends.clear();
  peer.announced.clear();
  peer.ready_ids.clear();
  peer.to_fetch.clear();
  peer.controls.clear();
  std::erase_if(peer.incoming_by_id,
                [](const auto& each) { return each.second.receive != nullptr || !each.second.has_joined(); });
  const bool is_last = lost_count_ == world_size_ - 1;
  for (Operation* const receive : matcher_.take_receives([rank, is_last](const Operation& each) {
         return each.peer == rank || (each.peer == BP_ANY_SOURCE && is_last);
       })) {
    fail(*receive, why);
  }
}

}  // namespace backplane::shm
