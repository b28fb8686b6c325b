// SPDX-License-Identifier: Apache-2.0
//
// The operations: how they start, meet and end. messages.cpp has what comes from other ranks.
#include "protocol.hpp"

#include <algorithm>
#include <cstring>

namespace backplane::zmq_plugin {
namespace {

// What an unreceived eager message costs beside its bytes, so that a flood of empty ones is bounded, too.
constexpr uint64_t kMessageCost = 128;

// Eager messages up to this size are copied, so that their send is done at once; for larger ones the way back of the
// buffer costs less than a copy.
constexpr uint64_t kCopied = 65536;

// Gives a piece of a send's buffer back. Called by libzmq, on any thread.
struct Lent {
  OperationPtr send;
  Releases* releases;
};
void give_back(void*, void* hint) {
  const std::unique_ptr<Lent> lent(static_cast<Lent*>(hint));
  lent->releases->release(lent->send);
}

}  // namespace

Protocol::Protocol(int32_t rank, int32_t world_size, const Settings& settings, const sdk::Host& host, uint64_t token,
                   Sockets& sockets, Releases& releases)
    : rank_(rank),
      world_size_(world_size),
      settings_(settings),
      host_(host),
      token_(token),
      sockets_(sockets),
      releases_(releases) {}

Protocol::Peer& Protocol::peer(int32_t rank) {
  const auto [entry, fresh] = peers_.try_emplace(rank);
  if (fresh) entry->second.credit = settings_.eager_window;
  return entry->second;
}

Protocol::Peer& Protocol::usable(int32_t rank) {
  Peer& other = peer(rank);
  if (other.gone) throw sdk::Failure(*other.gone);
  if (rank != rank_ && !other.dialled && other.queue.empty()) {
    other.queue.push_back(
        {compose(other, {.kind = Kind::kHello, .target = static_cast<uint64_t>(rank)}), nullptr, nullptr});
    if (notify_unresolved_) notify_unresolved_();
  }
  return other;
}

OperationPtr Protocol::start(const bp_op& op, bool sends) {
  if (aborted_) throw sdk::Failure(*aborted_);
  const bp_buffer& buffer = sends ? op.input : op.output;
  auto operation = std::make_shared<Operation>();
  operation->sends = sends;
  operation->peer = op.peer;
  operation->any_source = op.peer == BP_ANY_SOURCE;
  operation->tag = op.tag;
  operation->id = next_id_++;
  operation->data = static_cast<std::byte*>(buffer.data);
  operation->size = buffer.count * bp_dtype_size(op.dtype);
  operation->result = op.result;
  return operation;
}

OperationPtr Protocol::send(const bp_op& op) {
  OperationPtr send = start(op, true);
  if (op.peer == rank_) {
    send_to_self(send);
    return send;
  }
  Peer& other = usable(op.peer);
  const uint64_t cost = send->size + kMessageCost;
  if (send->size <= settings_.eager_limit && other.credit >= cost) {
    other.credit -= cost;
    if (send->size > kCopied) {
      lend(send);
      return send;
    }
    post(op.peer, compose(other, {.kind = Kind::kEager, .tag = send->tag, .size = send->size}, send->data, send->size),
         send);
  } else {
    sends_[send->id] = send;
    post(op.peer, compose(other, {.kind = Kind::kRequest, .tag = send->tag, .size = send->size, .id = send->id}));
  }
  return send;
}

void Protocol::lend(const OperationPtr& send) {
  sends_[send->id] = send;
  send->at_once = true;
  send->matched = true;
  send->lent = 1;
  peer(send->peer).queue.push_back({zmq::message_t(), send, nullptr});
  flush(send->peer);
}

void Protocol::send_to_self(const OperationPtr& send) {
  Arrival arrival;
  arrival.source = rank_;
  arrival.tag = send->tag;
  arrival.size = send->size;
  arrival.eager = false;
  arrival.local_send = send;
  if (const OperationPtr receive = matcher_.take_receive(rank_, send->tag)) {
    settle(receive, std::move(arrival));
    return;
  }
  Peer& self = peer(rank_);
  const uint64_t cost = send->size + kMessageCost;
  if (send->size <= settings_.eager_limit && self.credit >= cost) {
    self.credit -= cost;
    arrival.eager = true;
    arrival.local_send = nullptr;
    arrival.frame = zmq::message_t(send->data, send->size);
    send->finish();
  }
  matcher_.add_arrival(std::move(arrival));
}

OperationPtr Protocol::receive(const bp_op& op) {
  if (op.message != nullptr) return receive_probed(op);
  OperationPtr receive = start(op, false);
  if (std::optional<Arrival> arrival = matcher_.take_arrival(op.peer, op.tag)) {
    settle(receive, std::move(*arrival));
    return receive;
  }
  if (op.peer == BP_ANY_SOURCE && nobody_left_) throw sdk::Failure(*nobody_left_);
  // A connection to the sender is what tells of its death.
  if (op.peer != BP_ANY_SOURCE && op.peer != rank_) usable(op.peer);
  matcher_.add_receive(receive);
  return receive;
}

// Brings a receive and its message together.
void Protocol::settle(const OperationPtr& receive, Arrival arrival) {
  if (receive->result != nullptr) {
    receive->result->source = arrival.source;
    receive->result->bytes = arrival.size;
    receive->result->tag = arrival.tag;
  }
  if (arrival.eager || arrival.local_send) {
    take_bytes(*receive, arrival);
    if (arrival.local_send) arrival.local_send->finish();
    if (arrival.eager) repay(arrival.source, arrival.size);
    return;
  }
  Header answer = {.kind = Kind::kReady, .id = arrival.remote_id, .target = receive->id};
  if (arrival.size > receive->size || arrival.size == 0) {
    take_bytes(*receive, arrival);
  } else {
    receive->peer = arrival.source;
    receive->remote_id = arrival.remote_id;
    receive->matched = true;
    receive->total = arrival.size;
    receives_[receive->id] = receive;
    answer.size = arrival.size;
  }
  try {
    post(arrival.source, compose(usable(arrival.source), answer));
  } catch (const sdk::Failure& gone) {
    receives_.erase(receive->id);
    receive->fail(gone);
  }
}

void Protocol::take_bytes(Operation& receive, const Arrival& arrival) {
  if (arrival.size > receive.size) {
    receive.fail(sdk::Failure(BP_INVALID,
                              "a message of " + std::to_string(arrival.size) + " bytes from rank " +
                                  std::to_string(arrival.source) + " does not fit the receive buffer of " +
                                  std::to_string(receive.size) + " bytes",
                              arrival.source));
    return;
  }
  const std::byte* bytes = arrival.local_send ? arrival.local_send->data : arrival.bytes();
  if (arrival.size > 0) std::memmove(receive.data, bytes, arrival.size);
  receive.finish();
}

// A received eager message makes room for others. The sender learns of it with the next message that goes there anyway,
// or by one of its own before the window gets tight.
void Protocol::repay(int32_t rank, uint64_t size) {
  Peer& other = peer(rank);
  if (rank == rank_) {
    other.credit += size + kMessageCost;
    return;
  }
  other.owed += size + kMessageCost;
  if (other.gone || other.owed < settings_.eager_window / 4) return;
  post(rank, compose(usable(rank), {.kind = Kind::kCredit}));
}

void Protocol::cancel(const OperationPtr& operation, const sdk::Failure& why, bool sever) {
  if (operation->done) return;
  if (!operation->sends) {
    matcher_.remove_receive(*operation);
    receives_.erase(operation->id);
    operation->fail(why);
  } else if (operation->peer == rank_) {
    matcher_.remove_local(*operation);
    lose_held([&operation](const Arrival& arrival) { return arrival.local_send == operation; }, sdk::taken_back());
    operation->fail(why);
  } else if (operation->size <= settings_.eager_limit && !sends_.contains(operation->id)) {
    take_out(*operation);
    operation->fail(why);
  } else if (operation->at_once && operation->moved == 0) {
    take_out(*operation);
    sends_.erase(operation->id);
    operation->fail(why);
  } else if (!operation->matched) {
    sends_.erase(operation->id);
    operation->fail(why);
    Peer& other = peer(operation->peer);
    const Header withdrawal = {.kind = Kind::kWithdraw, .tag = operation->tag, .id = operation->id};
    if (!other.gone) post(operation->peer, compose(other, withdrawal));
  } else if (sever) {
    operation->failure.emplace(why);
    lose(operation->peer, sdk::Failure(BP_PEER_LOST,
                                       "the connection to rank " + std::to_string(operation->peer) +
                                           " was given up in the middle of a message: " + why.what(),
                                       operation->peer));
  }
}

// Of the queue, an eager message of which nothing has left.
void Protocol::take_out(const Operation& send) {
  Peer& other = peer(send.peer);
  const auto gone = std::erase_if(other.queue, [&send](const Outgoing& waiting) {
    return waiting.eager_send.get() == &send || waiting.transfer.get() == &send;
  });
  if (gone > 0) other.credit += send.size + kMessageCost;
}

void Protocol::abort(const sdk::Failure& why) {
  if (aborted_) return;
  aborted_.emplace(why);
  for (const OperationPtr& operation : matcher_.clear()) operation->fail(why);
  for (Held& held : held_) {
    if (held.arrival.local_send) held.arrival.local_send->fail(why);
    held.lose(why);
  }
  for (const auto& [id, receive] : receives_) receive->fail(why);
  receives_.clear();
  for (auto& [rank, other] : peers_) {
    if (!other.gone) other.gone.emplace(why);
    for (const Outgoing& waiting : other.queue) {
      if (waiting.transfer) releases_.release(waiting.transfer);
      if (waiting.eager_send) waiting.eager_send->fail(why);
    }
    other.queue.clear();
  }
  const std::map<uint64_t, OperationPtr> sends = sends_;
  for (const auto& [id, send] : sends) fail_send(send, why);
}

// A send whose buffer is in libzmq's hands fails when it is back.
void Protocol::fail_send(const OperationPtr& send, const sdk::Failure& why) {
  if (!send->failure) send->failure.emplace(why);
  if (send->matched) return;
  sends_.erase(send->id);
  send->finish();
}

void Protocol::finish_released() {
  for (const OperationPtr& send : releases_.take()) {
    sends_.erase(send->id);
    if (!send->done) send->finish();
  }
}

zmq::message_t Protocol::compose(Peer& to, Header header, const void* body, size_t size) {
  header.source = rank_;
  header.token = token_;
  header.credit = static_cast<uint32_t>(std::min<uint64_t>(to.owed, UINT32_MAX));
  to.owed -= header.credit;
  zmq::message_t frame(sizeof header + size);
  std::memcpy(frame.data(), &header, sizeof header);
  if (size > 0) std::memcpy(frame.data<std::byte>() + sizeof header, body, size);
  return frame;
}

void Protocol::post(int32_t rank, zmq::message_t frame, const OperationPtr& eager_send) {
  Peer& other = peer(rank);
  if (other.dialled && other.queue.empty() && hand_in(rank, frame, eager_send) == Sent::kYes) return;
  other.queue.push_back({std::move(frame), nullptr, eager_send});
  flush(rank);
}

// Hands the peer's queue to libzmq, as far as there is room.
void Protocol::flush(int32_t rank) {
  Peer& other = peer(rank);
  while (other.dialled && !other.queue.empty()) {
    Outgoing& next = other.queue.front();
    const Sent sent = next.transfer ? stream(rank, next.transfer) : hand_in(rank, next.frame, next.eager_send);
    if (sent == Sent::kGone) return;  // the broken connection will be reported
    if (sent == Sent::kFull) {
      if (std::find(backlog_.begin(), backlog_.end(), rank) == backlog_.end()) backlog_.push_back(rank);
      return;
    }
    other.queue.pop_front();
  }
}

Sent Protocol::hand_in(int32_t rank, zmq::message_t& frame, const OperationPtr& eager_send) {
  const Sent sent = sockets_.begin(rank);
  if (sent != Sent::kYes) return sent;
  sockets_.part(frame, false);
  ++peer(rank).sent;
  if (eager_send) eager_send->finish();
  return sent;
}

// Hands in the pieces of a message, straight from the user's buffer. kYes: all of them.
Sent Protocol::stream(int32_t rank, const OperationPtr& send) {
  Peer& other = peer(rank);
  while (send->moved < send->size) {
    const Sent sent = sockets_.begin(rank);
    if (sent != Sent::kYes) return sent;
    const uint64_t size = send->at_once ? send->size : std::min(settings_.chunk_size, send->size - send->moved);
    zmq::message_t header = compose(
        other, send->at_once
                   ? Header{.kind = Kind::kWhole, .tag = send->tag, .size = size}
                   : Header{.kind = Kind::kData, .size = size, .target = send->remote_id, .offset = send->moved});
    sockets_.part(header, true);
    send->lent.fetch_add(1, std::memory_order_relaxed);
    zmq::message_t piece(send->data + send->moved, size, &give_back, new Lent{send, &releases_});
    sockets_.part(piece, false);
    send->moved += size;
    ++other.sent;
  }
  releases_.release(send);
  return Sent::kYes;
}

}  // namespace backplane::zmq_plugin
