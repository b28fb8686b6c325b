// SPDX-License-Identifier: Apache-2.0
//
// What the agent's connections bring, and how they are kept.
#include <algorithm>
#include <set>
#include <utility>

#include "rpc.hpp"

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kAtATime = 64;              // messages that are taken in before the core hears of them
constexpr milliseconds kReceiptDelay(5);  // in which a message of our own may carry the confirmation
constexpr uint64_t kMostOwed = 64;        // messages, after which it goes at once
constexpr milliseconds kPatience(500);    // for a confirmation, before it is asked for
constexpr milliseconds kLongestRetryPause(500);
constexpr int kFewFailures = 3;

// Before the connection is dialled for the nth time without success.
milliseconds pause_after(int failures) {
  return failures <= 1 ? milliseconds(0)
                       : std::min(kLongestRetryPause, milliseconds(int64_t{1} << std::min(failures, 20)));
}

}  // namespace

bool RpcAgent::receive(News* news) {
  admit();
  Inbound none;
  while (sockets_.receive_reply(none)) {  // these sockets carry no replies
  }
  note_breaks(news);
  ::zmq::message_t route;
  std::vector<::zmq::message_t> frames;
  int count = 0;
  while (count < kAtATime && sockets_.receive(route, frames)) {
    ++count;
    take(std::move(frames), news);
  }
  return count > 0;
}

// Those who dial have put their keys into the store before, and this agent has read all of them.
void RpcAgent::admit() {
  if (!sockets_.secure()) return;
  while (const auto& key = sockets_.admission().waiting()) {
    const auto known = keys_.find(*key);
    sockets_.admission().answer(known == keys_.end() ? -1 : known->second);
  }
}

void RpcAgent::take(std::vector<::zmq::message_t> frames, News* news) {
  const auto header =
      frames.empty() ? std::nullopt : parse_header(frames.front(), token_, static_cast<int32_t>(peers_.size()));
  const bool proven =
      header && (!sockets_.secure() || Admission::rank_of(frames.front()) == header->from) && header->from != rank_;
  if (!proven) {
    if (std::exchange(warned_, true)) return;
    return host_.log(BP_LOG_WARN, "zmq: dropped a message that no worker of this job has sent (said once)");
  }
  Peer& peer = peers_[static_cast<size_t>(header->from)];
  if (peer.gone) {  // it was out of reach, and lives; it could not be told that its calls' answers were lost
    news->back.emplace_back(header->from, *peer.gone);
    peer.gone.reset();
    peer.failures = 0;
  }
  confirm(&peer, header->received);
  if (header->kind == RpcKind::kReceipt) return;
  const TimePoint now = Clock::now();
  if (peer.owed == 0) peer.owed_since = now;
  // What is sent once more tells that a confirmation was lost, as a question does.
  const bool urgent = header->kind == RpcKind::kQuestion || header->number <= peer.received;
  peer.owed += urgent ? kMostOwed : 1;
  due_ = std::min(due_, peer.owed >= kMostOwed ? now : peer.owed_since + kReceiptDelay);
  if (header->kind == RpcKind::kQuestion || header->number <= peer.received) return;
  peer.received = header->number;
  if (auto arrival = parse_message(*header, std::move(frames), core_.max_message_bytes())) {
    news->arrivals.push_back(std::move(arrival));
  } else {
    host_.log(BP_LOG_ERROR, "zmq: a message of rank " + std::to_string(header->from) +
                                " was dropped: it is not what it says, or larger than max_message_bytes");
  }
}

void RpcAgent::confirm(Peer* peer, uint64_t number) {
  bool any = false;
  while (!peer->unconfirmed.empty() && peer->unconfirmed.front()->number <= number) {
    peer->unconfirmed.pop_front();
    any = true;
  }
  if (!any) return;
  peer->asked_at = Clock::now();
  peer->failures = 0;
}

void RpcAgent::note_breaks(News* news) {
  std::set<int32_t> ranks;  // several events may tell of one break
  while (const auto rank = sockets_.broken()) ranks.insert(*rank);
  for (const int32_t rank : ranks) broke(rank, news);
}

void RpcAgent::broke(int32_t rank, News* news) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  sockets_.hang_up(rank);
  peer.dialled = false;
  if (peer.unconfirmed.empty()) return;  // the next message dials
  const TimePoint now = Clock::now();
  if (peer.failures++ == 0) peer.failing_since = now;
  if (peer.failures > kFewFailures && now - peer.failing_since > settings_.connect_timeout) {
    return lose(
        rank,
        sdk::Failure(BP_PEER_LOST,
                     "rank " + std::to_string(rank) + " is gone: nobody answers at " + peer.address.endpoint, rank),
        news);
  }
  peer.dial_at = now + pause_after(peer.failures);
  due_ = std::min(due_, peer.dial_at);
}

void RpcAgent::lose(int32_t rank, const sdk::Failure& why, News* news) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.gone.emplace(why);
  peer.lost_at = Clock::now();
  for (const Kept& message : peer.unconfirmed) news->failed.push_back({rank, message->message.id(), why});
  peer.unconfirmed.clear();
  sockets_.hang_up(rank);
  peer.dialled = false;
  news->lost.emplace_back(rank, why);
}

TimePoint RpcAgent::keep_up(News* news) {
  const TimePoint now = Clock::now();
  if (now < due_) return due_;
  due_ = TimePoint::max();
  for (int32_t rank = 0; rank < static_cast<int32_t>(peers_.size()); ++rank) keep_up(rank, now, news);
  return due_;
}

void RpcAgent::keep_up(int32_t rank, TimePoint now, News* news) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  expire(rank, now, news);
  if (peer.gone || (peer.unconfirmed.empty() && peer.owed == 0)) return;
  if (!peer.dialled) {
    if (now < peer.dial_at) {
      due_ = std::min(due_, peer.dial_at);
      return;
    }
    dial(rank, news);
    if (!peer.dialled) return;
  }
  if (peer.owed > 0) {
    const TimePoint due = peer.owed_since + kReceiptDelay;
    if (peer.owed >= kMostOwed || now >= due) {
      if (!post(rank, RpcKind::kReceipt)) return;
    } else {
      due_ = std::min(due_, due);
    }
  }
  if (peer.unconfirmed.empty()) return;
  if (now - peer.asked_at >= kPatience) {
    peer.asked_at = now;
    if (!post(rank, RpcKind::kQuestion)) return;
  }
  due_ = std::min(due_, peer.asked_at + kPatience);
}

// Drops messages whose time limit has passed.
void RpcAgent::expire(int32_t rank, TimePoint now, News* news) {
  std::erase_if(peers_[static_cast<size_t>(rank)].unconfirmed, [rank, now, news](const Kept& message) {
    if (now < message->limit) return false;
    news->failed.push_back(
        {rank, message->message.id(),
         sdk::Failure(BP_TIMEOUT, "rank " + std::to_string(rank) + " did not confirm the message in time", rank)});
    return true;
  });
}

void RpcAgent::dial(int32_t rank, News* news) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  try {
    sockets_.dial(rank, peer.address.endpoint, peer.address.public_key);
  } catch (const ::zmq::error_t& e) {
    return lose(rank,
                sdk::Failure(BP_PEER_LOST,
                             "rank " + std::to_string(rank) + " cannot be dialled at '" + peer.address.endpoint +
                                 "': " + e.what(),
                             rank, e.num()),
                news);
  }
  peer.dialled = true;
  for (const Kept& message : peer.unconfirmed) {
    if (!post(rank, RpcKind::kMessage, message)) return;
  }
}

// False: the connection is not there any more, and is to be dialled anew.
bool RpcAgent::post(int32_t rank, RpcKind kind, const Kept& message) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  RpcHeader header;
  header.kind = kind;
  header.from = rank_;
  header.token = peer.token;
  header.number = message ? message->number : 0;
  header.received = peer.received;
  std::vector<::zmq::message_t> frames = compose(header, message);
  if (sockets_.begin(rank) != Sent::kYes) {
    sockets_.hang_up(rank);
    peer.dialled = false;
    peer.dial_at = Clock::now();
    due_ = std::min(due_, peer.dial_at);
    return false;
  }
  for (size_t i = 0; i < frames.size(); ++i) sockets_.part(frames[i], i + 1 < frames.size());
  peer.owed = 0;
  return true;
}

}  // namespace backplane::zmq
