// SPDX-License-Identifier: Apache-2.0
//
// Protocol's other half: what comes in from other ranks, and how they leave.
#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol.hpp"

namespace backplane::zmq_plugin {
namespace {

// Messages taken in at one go, so that others get at the lock in between.
constexpr int kBatch = 64;

// A broken connection may overtake the goodbye on the other one.
constexpr std::chrono::milliseconds kGrace(250);

// Room in libzmq is announced like a message, so that the announcement can be used up by the same race.
constexpr std::chrono::milliseconds kRetry(1);

// An unexpected message up to this size is copied out of the larger buffer that libzmq received it in, which it would
// otherwise keep alive.
constexpr size_t kCopyLimit = 4096;

}  // namespace

TimePoint Protocol::progress(const Operation* wanted) {
  finish_released();
  if (aborted_) return TimePoint::max();
  Inbound message;
  int taken = 0;
  while (taken < kBatch && sockets_.receive(message)) {
    ++taken;
    on_message(message);
    if (wanted != nullptr && wanted->done) return TimePoint::min();
  }
  const TimePoint now = std::chrono::steady_clock::now();
  while (const std::optional<int32_t> rank = sockets_.broken()) {
    if (!peer(*rank).gone) suspects_.try_emplace(*rank, now + kGrace);
  }
  lose_suspects(now);
  for (const int32_t rank : std::exchange(backlog_, {})) flush(rank);
  // Last, because all calls above may have used up the readiness that announced an answer.
  take_answers();
  finish_released();
  if (taken == kBatch) return TimePoint::min();
  TimePoint due = backlog_.empty() ? TimePoint::max() : now + kRetry;
  for (const auto& [rank, time] : suspects_) due = std::min(due, time);
  return due;
}

void Protocol::take_answers() {
  Inbound message;
  while (!aborted_ && sockets_.receive_reply(message)) on_reply(message);
}

void Protocol::reject(const char* what) {
  if (std::exchange(warned_, true)) return;
  host_.log(BP_LOG_WARN, std::string("zmq: dropped ") + what +
                             ": a stranger, or a rank of another job, talks to this port (said once)");
}

void Protocol::on_message(Inbound& message) {
  const std::optional<Header> header =
      message.frames == 0 ? std::nullopt
                          : parse(message.frame.data<std::byte>(), message.frame.size(), token_, world_size_);
  const size_t expected = header && (header->kind == Kind::kData || header->kind == Kind::kWhole) ? 2 : 1;
  if (!header || header->source == rank_ || header->kind == Kind::kFarewell || message.frames != expected) {
    reject("a malformed message");
    return;
  }
  if (header->kind == Kind::kHello && header->target != static_cast<uint64_t>(rank_)) {
    reject("a message for another rank");
    return;
  }
  Peer& other = peer(header->source);
  // A rank speaks through the one connection that it introduced itself on. It does so once: a second hello is one that
  // somebody has overheard. Where ranks have keys, it is the one that was let in by its own.
  const bool proven = !sockets_.secure() || Admission::rank_of(message.frame) == header->source;
  if (header->kind == Kind::kHello && other.route.empty() && proven) other.route = message.route.to_string();
  if (other.route.empty() || message.route.to_string_view() != other.route) {
    reject("a message in the name of another rank");
    return;
  }
  ++other.received;
  other.credit = std::min(other.credit + header->credit, settings_.eager_window);
  if (!other.gone) dispatch(*header, message);
  leave_if_complete(header->source);
}

void Protocol::dispatch(const Header& header, Inbound& message) {
  switch (header.kind) {
    case Kind::kEager:
    case Kind::kWhole:
      return on_eager(header, message);
    case Kind::kRequest:
      return on_request(header);
    case Kind::kReady:
      return on_ready(header);
    case Kind::kData:
      return on_data(header, message);
    case Kind::kWithdraw:
      return on_withdraw(header);
    case Kind::kBye:
      return on_bye(header, message);
    case Kind::kHello:
    case Kind::kCredit:
    case Kind::kFarewell:
      return;
  }
}

void Protocol::on_eager(const Header& header, Inbound& message) {
  const bool apart = header.kind == Kind::kWhole;
  if (header.size > settings_.eager_limit || (apart && header.size != message.body.size())) {
    return violate(header.source);
  }
  Arrival arrival;
  arrival.source = header.source;
  arrival.tag = header.tag;
  arrival.size = header.size;
  arrival.frame = std::move(apart ? message.body : message.frame);
  arrival.skip = apart ? 0 : sizeof(Header);
  if (const OperationPtr receive = matcher_.take_receive(header.source, header.tag)) {
    settle(receive, std::move(arrival));
    return;
  }
  if (header.size <= kCopyLimit) {
    arrival.frame = zmq::message_t(arrival.bytes(), header.size);
    arrival.skip = 0;
  }
  matcher_.add_arrival(std::move(arrival));
}

void Protocol::on_request(const Header& header) {
  Arrival arrival;
  arrival.source = header.source;
  arrival.tag = header.tag;
  arrival.size = header.size;
  arrival.eager = false;
  arrival.remote_id = header.id;
  if (const OperationPtr receive = matcher_.take_receive(header.source, header.tag)) {
    settle(receive, std::move(arrival));
  } else {
    matcher_.add_arrival(std::move(arrival));
  }
}

void Protocol::on_ready(const Header& header) {
  const auto found = sends_.find(header.id);
  if (found == sends_.end()) return;  // withdrawn meanwhile
  const OperationPtr send = found->second;
  if (send->peer != header.source || send->matched || (header.size != 0 && header.size != send->size)) {
    return violate(header.source);
  }
  if (header.size == 0) {  // empty, or too long for the receive: that is the receiver's error
    sends_.erase(found);
    send->finish();
    return;
  }
  send->matched = true;
  send->remote_id = header.target;
  send->lent = 1;
  peer(header.source).queue.push_back({zmq::message_t(), send, nullptr});
  flush(header.source);
}

void Protocol::on_data(const Header& header, Inbound& message) {
  const auto found = receives_.find(header.target);
  if (found == receives_.end()) return;  // cancelled meanwhile
  const OperationPtr receive = found->second;
  if (receive->peer != header.source) return violate(header.source);
  if (header.offset != receive->moved || header.size == 0 || header.size != message.body.size() ||
      header.size > receive->total - receive->moved) {
    return violate(header.source);
  }
  std::memcpy(receive->data + receive->moved, message.body.data(), header.size);
  receive->moved += header.size;
  if (receive->moved == receive->total) {
    receives_.erase(found);
    receive->finish();
  }
}

// The receive that was to get the withdrawn message goes back to where it was.
void Protocol::on_withdraw(const Header& header) {
  if (matcher_.remove_request(header.source, header.tag, header.id)) return;
  const auto is_it = [&header](const Arrival& arrival) {
    return !arrival.eager && arrival.source == header.source && arrival.remote_id == header.id;
  };
  if (lose_held(is_it, sdk::taken_back())) return;
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&header](const auto& entry) {
    return entry.second->peer == header.source && entry.second->remote_id == header.id;
  });
  if (found == receives_.end()) return;
  const OperationPtr receive = found->second;
  receives_.erase(found);
  if (receive->is_probed) return receive->fail(sdk::taken_back());
  receive->matched = false;
  receive->moved = 0;
  if (receive->any_source) receive->peer = BP_ANY_SOURCE;
  if (std::optional<Arrival> arrival = matcher_.take_arrival(receive->peer, receive->tag)) {
    settle(receive, std::move(*arrival));
  } else {
    matcher_.add_receive(receive);
  }
}

// A bye along the connection that brought all other messages is itself proof that they have arrived.
void Protocol::on_bye(const Header& header, const Inbound& message) {
  Peer& other = peer(header.source);
  other.farewell.assign(message.frame.data<char>() + sizeof header, message.frame.size() - sizeof header);
  other.leaves_after = other.received;
  Header answer = {.kind = Kind::kFarewell};
  sockets_.reply(other.route, compose(other, answer));
}

void Protocol::on_reply(Inbound& message) {
  const std::optional<Header> header =
      message.frames != 1 ? std::nullopt
                          : parse(message.frame.data<std::byte>(), message.frame.size(), token_, world_size_);
  if (!header || header->source != Sockets::rank_of(message.route)) return reject("a malformed answer");
  Peer& other = peer(header->source);
  if (header->kind == Kind::kFarewell) {
    other.answered = true;
  } else if (header->kind == Kind::kBye) {
    other.farewell.assign(message.frame.data<char>() + sizeof(Header), message.frame.size() - sizeof(Header));
    other.leaves_after = header->size;
    leave_if_complete(header->source);
  }
}

void Protocol::leave_if_complete(int32_t rank) {
  const Peer& other = peer(rank);
  if (other.gone || !other.leaves_after || other.received < *other.leaves_after) return;
  lose(rank, decode_reason(other.farewell, rank, world_size_));
}

void Protocol::lose_suspects(TimePoint now) {
  for (auto suspect = suspects_.begin(); suspect != suspects_.end();) {
    const auto [rank, due] = *suspect;
    const Peer& other = peer(rank);
    if (!other.gone && due > now) {
      ++suspect;
      continue;
    }
    suspect = suspects_.erase(suspect);
    lose(rank,
         other.leaves_after
             ? decode_reason(other.farewell, rank, world_size_)
             : sdk::Failure(BP_PEER_LOST,
                            "rank " + std::to_string(rank) + " is gone: its connection broke without a goodbye", rank));
  }
}

// Ends what needs that rank. Its eager messages can still be received.
void Protocol::lose(int32_t rank, const sdk::Failure& why) {
  Peer& other = peer(rank);
  if (other.gone) return;
  other.gone.emplace(why);
  for (const Outgoing& waiting : other.queue) {
    if (waiting.transfer) releases_.release(waiting.transfer);
    if (waiting.eager_send) waiting.eager_send->fail(why);
  }
  other.queue.clear();
  for (const OperationPtr& receive : matcher_.drop_source(rank)) receive->fail(why);
  if (++gone_ == world_size_ - 1) {
    nobody_left_.emplace(BP_PEER_LOST, std::string("no other rank is left; the last one to go: ") + why.what(), rank);
    for (const OperationPtr& receive : matcher_.drop_source(BP_ANY_SOURCE)) receive->fail(*nobody_left_);
  }
  std::erase_if(receives_, [rank, &why](const auto& entry) {
    if (entry.second->peer != rank) return false;
    entry.second->fail(why);
    return true;
  });
  const std::map<uint64_t, OperationPtr> sends = sends_;
  // A rank that left in order had asked for this message and taken what it wanted of it; the buffer comes back soon.
  const bool in_order = other.leaves_after && other.farewell.empty();
  for (const auto& [id, send] : sends) {
    const bool delivered = in_order && send->matched && send->moved == send->size;
    if (send->peer == rank && !delivered) fail_send(send, why);
  }
  sockets_.hang_up(rank);
  finish_released();
}

void Protocol::violate(int32_t rank) {
  lose(rank, sdk::Failure(BP_INTERNAL,
                          "rank " + std::to_string(rank) +
                              " broke the protocol of the zmq backend; do all ranks run "
                              "the same version with the same options?",
                          rank));
}

std::vector<int32_t> Protocol::unresolved() const {
  std::vector<int32_t> ranks;
  for (const auto& [rank, other] : peers_) {
    if (!other.dialled && !other.gone && !other.queue.empty()) ranks.push_back(rank);
  }
  return ranks;
}

void Protocol::resolve(int32_t rank, const std::string& endpoint, const std::string& public_key) {
  Peer& other = peer(rank);
  if (aborted_ || other.gone || other.dialled) return;
  try {
    const bool known = endpoint.starts_with("tcp://") || endpoint.starts_with("ipc://@");
    if (endpoint.size() > 256 || !known) throw zmq::error_t();
    sockets_.dial(rank, endpoint, public_key);
  } catch (const zmq::error_t&) {
    lose(rank, sdk::Failure(BP_INTERNAL,
                            "the store holds no address that zmq can dial for rank " + std::to_string(rank) + ": '" +
                                endpoint.substr(0, 256) + "'",
                            rank));
    return;
  }
  other.dialled = true;
  flush(rank);
}

void Protocol::begin_goodbye() {
  for (auto& [rank, other] : peers_) {
    if (other.dialled && !other.gone) post(rank, compose(other, {.kind = Kind::kBye}));
  }
}

bool Protocol::goodbye_answered() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return !entry.second.dialled || entry.second.answered || entry.second.gone;
  });
}

void Protocol::end_goodbye() {
  const std::string reason = aborted_ ? encode_reason(*aborted_) : "";
  for (auto& [rank, other] : peers_) {
    if (other.route.empty() || (other.gone && !aborted_)) continue;
    // After an abort, what was sent may never arrive: nobody shall wait for it.
    const Header bye = {.kind = Kind::kBye, .size = aborted_ ? 0 : other.sent};
    sockets_.reply(other.route, compose(other, bye, reason.data(), reason.size()));
  }
}

}  // namespace backplane::zmq_plugin
