// SPDX-License-Identifier: Apache-2.0
//
// Received messages, confirmations and connections.
#include <algorithm>
#include <set>
#include <utility>

#include "rpc.hpp"

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kReceiveBatch = 64;             // messages received before they are reported
constexpr milliseconds kReceiptDelay(5);      // for a message of this worker that carries the confirmation
constexpr uint64_t kReceiptAfter = 64;        // unacknowledged messages; then a receipt is sent at once
constexpr milliseconds kConfirmTimeout(500);  // before a confirmation is requested
constexpr milliseconds kLongestRetryPause(500);
constexpr int kMinFailures = 3;  // of connections to a lost worker

// Before the next dial.
milliseconds pause_after(int failures) {
  return failures <= 1 ? milliseconds(0)
                       : std::min(kLongestRetryPause, milliseconds(int64_t{1} << std::min(failures, 20)));
}

}  // namespace

bool RpcAgent::receive(Events* events) {
  answer_zap();
  Inbound none;
  while (sockets_.receive_reply(none)) {  // these sockets carry no replies
  }
  on_breaks(events);
  ::zmq::message_t route;
  std::vector<::zmq::message_t> frames;
  int count = 0;
  while (count < kReceiveBatch && sockets_.receive(route, frames)) {
    ++count;
    on_message(std::move(frames), events);
  }
  if (count < kReceiveBatch) due_ = std::min(due_, sockets_.limiter().enforce(Clock::now()));
  return count > 0;
}

// Accepts or refuses pending clients. No look-up is needed: this agent has read the keys of all workers.
void RpcAgent::answer_zap() {
  const Token& own = peers_[static_cast<size_t>(rank_)].token;
  while (const auto& credential = sockets_.zap().pending()) {
    const auto known = std::find_if(peers_.begin(), peers_.end(), [&credential](const Peer& peer) {
      return credential->size() == kCurveKeySize && peer.address.public_key == *credential;
    });
    if (sockets_.secure()) {
      sockets_.zap().answer(known == peers_.end() ? -1 : static_cast<int32_t>(known - peers_.begin()));
    } else {
      sockets_.zap().answer(*credential == std::string_view(own.data(), own.size()) ? 0 : -1);
    }
    sockets_.limiter().update();  // before the first message of this client
  }
}

void RpcAgent::on_message(std::vector<::zmq::message_t> frames, Events* events) {
  const Token& own = peers_[static_cast<size_t>(rank_)].token;
  const auto header =
      frames.empty() ? std::nullopt : parse_header(frames.front(), own, static_cast<int32_t>(peers_.size()));
  const bool proven =
      header && (!sockets_.secure() || ZapHandler::rank_of(frames.front()) == header->from) && header->from != rank_;
  if (!proven) {
    return host_.log(rejected_, BP_LOG_WARN, "zmq: dropped a message that is not from a worker of this job");
  }
  if (sockets_.limiter().has_pending()) sockets_.limiter().prove(frames.front());
  Peer& peer = peers_[static_cast<size_t>(header->from)];
  if (peer.lost) {
    events->returned.emplace_back(header->from, *peer.lost);
    peer.lost.reset();
    peer.failures = 0;
  }
  confirm(&peer, header->received);
  if (header->kind == RpcKind::kReceipt) return;
  const TimePoint now = Clock::now();
  if (peer.unacknowledged == 0) peer.unacknowledged_since = now;
  // The sender resends a message if its confirmation was lost.
  const bool urgent = header->kind == RpcKind::kReceiptRequest || header->number <= peer.received;
  peer.unacknowledged += urgent ? kReceiptAfter : 1;
  due_ = std::min(due_, peer.unacknowledged >= kReceiptAfter ? now : peer.unacknowledged_since + kReceiptDelay);
  if (urgent) return;
  peer.received = header->number;
  if (auto message = parse_message(*header, std::move(frames), core_.max_message_bytes())) {
    events->received.push_back(std::move(message));
  } else {
    host_.log(dropped_, BP_LOG_ERROR,
              "zmq: a message of rank " + std::to_string(header->from) +
                  " was dropped: it is malformed or larger than max_message_bytes");
  }
}

void RpcAgent::confirm(Peer* peer, uint64_t number) {
  bool any = false;
  while (!peer->unconfirmed.empty() && peer->unconfirmed.front()->number <= number) {
    peer->unconfirmed.pop_front();
    any = true;
  }
  if (!any) return;
  peer->confirmed_at = Clock::now();
  peer->failures = 0;
}

void RpcAgent::on_breaks(Events* events) {
  std::set<int32_t> ranks;  // one break may cause several events
  while (const auto rank = sockets_.broken()) ranks.insert(*rank);
  for (const int32_t rank : ranks) on_break(rank, events);
}

void RpcAgent::on_break(int32_t rank, Events* events) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  sockets_.disconnect(rank);
  peer.dialled = false;
  if (peer.unconfirmed.empty()) return;  // the next message dials
  const TimePoint now = Clock::now();
  if (peer.failures++ == 0) peer.failing_since = now;
  if (peer.failures > kMinFailures && now - peer.failing_since > settings_.connect_timeout) {
    return lose(rank,
                sdk::Failure(BP_PEER_LOST,
                             "rank " + std::to_string(rank) + " is lost: no answer at " + peer.address.endpoint, rank),
                events);
  }
  peer.dial_at = now + pause_after(peer.failures);
  due_ = std::min(due_, peer.dial_at);
}

void RpcAgent::lose(int32_t rank, const sdk::Failure& why, Events* events) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.lost.emplace(why);
  peer.lost_at = Clock::now();
  for (const Message& message : peer.unconfirmed) events->failed.push_back({rank, message->message.id(), why});
  peer.unconfirmed.clear();
  sockets_.disconnect(rank);
  peer.dialled = false;
  events->lost.emplace_back(rank, why);
}

TimePoint RpcAgent::maintain(Events* events) {
  const TimePoint now = Clock::now();
  if (now < due_) return due_;
  due_ = TimePoint::max();
  for (int32_t rank = 0; rank < static_cast<int32_t>(peers_.size()); ++rank) maintain(rank, now, events);
  return due_;
}

void RpcAgent::maintain(int32_t rank, TimePoint now, Events* events) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  expire(rank, now, events);
  if (peer.lost || (peer.unconfirmed.empty() && peer.unacknowledged == 0)) return;
  if (!peer.dialled) {
    if (now < peer.dial_at) {
      due_ = std::min(due_, peer.dial_at);
      return;
    }
    dial(rank, events);
    if (!peer.dialled) return;
  }
  if (peer.unacknowledged > 0) {
    const TimePoint due = peer.unacknowledged_since + kReceiptDelay;
    if (peer.unacknowledged >= kReceiptAfter || now >= due) {
      if (!post(rank, RpcKind::kReceipt)) return;
    } else {
      due_ = std::min(due_, due);
    }
  }
  if (peer.unconfirmed.empty()) return;
  if (now - peer.confirmed_at >= kConfirmTimeout) {
    peer.confirmed_at = now;
    if (!post(rank, RpcKind::kReceiptRequest)) return;
  }
  due_ = std::min(due_, peer.confirmed_at + kConfirmTimeout);
}

// Drops messages whose time limit has passed.
void RpcAgent::expire(int32_t rank, TimePoint now, Events* events) {
  std::erase_if(peers_[static_cast<size_t>(rank)].unconfirmed, [rank, now, events](const Message& message) {
    if (now < message->deadline) return false;
    events->failed.push_back(
        {rank, message->message.id(),
         sdk::Failure(BP_TIMEOUT, "rank " + std::to_string(rank) + " did not confirm the message in time", rank)});
    return true;
  });
}

void RpcAgent::dial(int32_t rank, Events* events) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  try {
    const std::string token(peer.token.data(), peer.token.size());
    sockets_.dial(rank, peer.address.endpoint, sockets_.secure() ? peer.address.public_key : token);
  } catch (const ::zmq::error_t& e) {
    return lose(rank,
                sdk::Failure(BP_PEER_LOST,
                             "rank " + std::to_string(rank) + " cannot be dialled at '" + peer.address.endpoint +
                                 "': " + e.what(),
                             rank, e.num()),
                events);
  }
  peer.dialled = true;
  // Small: proves this connection to the receiver's limiter before a message of any size.
  if (!post(rank, RpcKind::kReceipt)) return;
  for (const Message& message : peer.unconfirmed) {
    if (!post(rank, RpcKind::kMessage, message)) return;
  }
}

// Returns false if the connection is broken; maintain() dials again.
bool RpcAgent::post(int32_t rank, RpcKind kind, const Message& message) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  RpcHeader header;
  header.kind = kind;
  header.from = rank_;
  header.token = peer.token;
  header.number = message ? message->number : 0;
  header.received = peer.received;
  std::vector<::zmq::message_t> frames = compose(header, message);
  if (sockets_.begin(rank) != Sent::kYes) {
    sockets_.disconnect(rank);
    peer.dialled = false;
    peer.dial_at = Clock::now();
    due_ = std::min(due_, peer.dial_at);
    return false;
  }
  for (size_t i = 0; i < frames.size(); ++i) sockets_.send_part(frames[i], i + 1 < frames.size());
  peer.unacknowledged = 0;
  return true;
}

}  // namespace backplane::zmq
