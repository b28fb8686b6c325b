// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backplane/base/grace.hpp"
#include "backplane/sdk/peer_failures.hpp"

namespace backplane::zmq {
namespace {

// Messages received before other threads get the lock.
constexpr int kBatch = 64;

// When to retry a full queue: the readiness that announces room can be consumed like that of a message.
constexpr std::chrono::milliseconds kRetry(1);

// An unexpected message up to this size is copied out of the larger buffer that libzmq received it in.
constexpr size_t kCopyLimit = 4096;

sdk::Messenger::Limits limits_of(const Settings& settings) {
  return {settings.eager_limit, settings.eager_window, settings.chunk_size, true};
}

}  // namespace

Messages::Messages(int32_t rank, int32_t world_size, const Settings& settings, const sdk::Host& host, uint64_t token,
                   Sockets& sockets, const base::EventFd& wake)
    : session_{rank, world_size, token},
      host_(host),
      sockets_(sockets),
      sender_(session_, sockets, messenger_, wake),
      messenger_(
          rank, world_size, [this](int32_t peer) { sender_.note_ready(peer); }, limits_of(settings)) {}

std::unique_ptr<sdk::CompletionWork> Messages::submit(const bp_op& op) {
  // A sender's death is detected by a broken connection to it.
  if (op.kind == BP_RECV && op.message == nullptr && op.peer != BP_ANY_SOURCE) sender_.connect(op.peer);
  return messenger_.submit(op);
}

bp_message* Messages::probe(int32_t peer, uint64_t tag, bp_result& result) {
  bp_message* const message = messenger_.probe(peer, tag, result);
  if (message == nullptr && peer != BP_ANY_SOURCE) sender_.connect(peer);
  return message;
}

void Messages::close_connection(int32_t rank, const std::string& why) {
  lose(rank,
       sdk::Failure(BP_PEER_LOST,
                    "the connection to rank " + std::to_string(rank) + " was closed in the middle of a message: " + why,
                    rank));
}

void Messages::abort(const sdk::Failure& why) {
  if (aborted_) return;
  aborted_.emplace(why);
  messenger_.abort(why);
  sender_.close_all();
}

void Messages::resolve(int32_t rank, const std::string& endpoint, const std::string& public_key) {
  if (aborted_ || sender_.dial(rank, endpoint, public_key)) return;
  lose(rank, sdk::Failure(BP_INTERNAL,
                          "zmq: the store has no valid endpoint of rank " + std::to_string(rank) + ": '" +
                              endpoint.substr(0, 256) + "'",
                          rank));
}

TimePoint Messages::progress(const sdk::Completion* wanted) {
  if (aborted_) return TimePoint::max();
  Inbound message;
  int taken = 0;
  while (taken < kBatch && sockets_.receive(message)) {
    ++taken;
    on_message(message);
    sender_.send_ready();
    if (wanted != nullptr && wanted->done()) return TimePoint::min();
  }
  const TimePoint now = std::chrono::steady_clock::now();
  while (const std::optional<int32_t> rank = sockets_.broken()) {
    if (!peer(*rank).lost) suspects_.try_emplace(*rank, now + std::chrono::nanoseconds(base::grace::kBrokenConnection));
  }
  lose_suspects(now);
  sender_.send_ready();
  sender_.retry();
  // Last, because all calls above may have consumed the readiness that announced a reply.
  receive_replies();
  if (taken == kBatch) return TimePoint::min();
  TimePoint due = sockets_.limiter().enforce(now);
  if (sender_.has_backlog()) due = std::min(due, now + kRetry);
  for (const auto& [rank, time] : suspects_) due = std::min(due, time);
  return due;
}

void Messages::receive_replies() {
  Inbound message;
  while (!aborted_ && sockets_.receive_reply(message)) on_reply(message);
}

void Messages::reject(const char* what) {
  host_.log(rejected_, BP_LOG_WARN,
            std::string("zmq: dropped ") + what + ": a process outside this group sends to this port");
}

void Messages::on_message(Inbound& message) {
  const std::optional<Header> header = message.frames == 0 ? std::nullopt : session_.parse(message.frame);
  const bool has_body = header && header->kind == Kind::kFrame && message.frames == 2;
  if (!header || header->source == session_.rank || header->kind == Kind::kGoodbyeAck ||
      (message.frames != 1 && !has_body)) {
    return reject("a malformed message");
  }
  if (header->kind == Kind::kHello && header->value != static_cast<uint64_t>(session_.rank)) {
    return reject("a message for another rank");
  }
  Peer& other = peer(header->source);
  // A rank sends along the connection that it introduced itself on, and does so once: a second hello is a replay. Where
  // ranks have keys, it must be the connection that its own key let in.
  const bool proven = !sockets_.secure() || ZapHandler::rank_of(message.frame) == header->source;
  if (header->kind == Kind::kHello && other.route.empty() && proven) {
    other.route = message.route.to_string();
    sockets_.limiter().prove(message.frame);
  }
  if (other.route.empty() || message.route.to_string_view() != other.route) {
    return reject("a message in the name of another rank");
  }
  ++other.received;
  if (!other.lost && header->kind == Kind::kFrame) on_frame(*header, message);
  if (!other.lost && header->kind == Kind::kGoodbye) on_goodbye(*header, message);
  leave_if_complete(header->source);
}

void Messages::on_frame(const Header& header, Inbound& message) {
  sdk::Messenger::Head head = {};
  std::memcpy(&head, message.frame.data<std::byte>() + sizeof header, sizeof head);
  const bool apart = message.frames == 2;
  std::span<const std::byte> data(message.body.data<std::byte>(), message.body.size());
  if (!apart) data = {message.frame.data<std::byte>() + kHeadSize, message.frame.size() - kHeadSize};
  sdk::Mailbox::Keep keep;
  if (data.size() > kCopyLimit) {  // large enough that moving the message does not move its data
    keep = [&message, apart] {
      return std::make_shared<::zmq::message_t>(std::move(apart ? message.body : message.frame));
    };
  }
  try {
    messenger_.arrived(header.source, head, data, keep);
  } catch (const sdk::Failure& malformed) {
    lose(header.source, sdk::Failure(BP_INTERNAL,
                                     std::string("zmq: ") + malformed.what() +
                                         "; run the same version with the same options on all ranks",
                                     header.source));
  }
}

// A goodbye along the connection that brought all other messages proves that they have arrived.
void Messages::on_goodbye(const Header& goodbye, const Inbound& message) {
  Peer& other = peer(goodbye.source);
  other.leave_reason.assign(message.frame.data<char>() + sizeof goodbye, message.frame.size() - sizeof goodbye);
  other.leaves_after = other.received;
  sockets_.reply(other.route, session_.compose(Kind::kGoodbyeAck));
}

void Messages::on_reply(Inbound& message) {
  const std::optional<Header> header = message.frames != 1 ? std::nullopt : session_.parse(message.frame);
  if (!header || header->source != Sockets::rank_of(message.route)) return reject("a malformed reply");
  Peer& other = peer(header->source);
  if (header->kind == Kind::kGoodbyeAck) {
    sender_.confirm_goodbye(header->source);
  } else if (header->kind == Kind::kGoodbye) {
    other.leave_reason.assign(message.frame.data<char>() + sizeof(Header), message.frame.size() - sizeof(Header));
    other.leaves_after = header->value;
    leave_if_complete(header->source);
  }
}

void Messages::leave_if_complete(int32_t rank) {
  const Peer& other = peer(rank);
  if (other.lost || !other.leaves_after || other.received < *other.leaves_after) return;
  lose(rank, decode_reason(other.leave_reason, rank, session_.world_size));
}

void Messages::lose_suspects(TimePoint now) {
  for (auto suspect = suspects_.begin(); suspect != suspects_.end();) {
    const auto [rank, due] = *suspect;
    const Peer& other = peer(rank);
    if (!other.lost && due > now) {
      ++suspect;
      continue;
    }
    suspect = suspects_.erase(suspect);
    lose(rank, other.leaves_after ? decode_reason(other.leave_reason, rank, session_.world_size)
                                  : sdk::peer_lost(rank, "its connection broke without a goodbye"));
  }
}

// Fails the operations that need that rank. Its eager messages can still be received.
void Messages::lose(int32_t rank, const sdk::Failure& why) {
  Peer& other = peer(rank);
  if (aborted_ || other.lost) return;
  other.lost.emplace(why);
  sender_.close(rank);
  // A rank that left in order has received what it wanted: libzmq soon returns the buffers that it has.
  const bool in_order = other.leaves_after && other.leave_reason.empty();
  messenger_.lost(rank, why, !in_order);
  sockets_.disconnect(rank);
}

void Messages::end_goodbye() {
  const std::string reason = aborted_ ? encode_reason(*aborted_) : "";
  for (auto& [rank, other] : peers_) {
    if (other.route.empty() || (other.lost && !aborted_)) continue;
    // After an abort, messages that were sent may never arrive: peers must not wait for them.
    sockets_.reply(other.route, session_.compose(Kind::kGoodbye, aborted_ ? 0 : sender_.sent(rank), reason));
  }
}

}  // namespace backplane::zmq
