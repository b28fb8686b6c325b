// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives frames.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

constexpr uint64_t kPiece = 1 << 20;  // bytes read or written by one call at most
constexpr int kTurns = 256;           // calls in a row for one peer

std::string errno_text(int number) {
  const char* text = ::strerrordesc_np(number);
  return text == nullptr ? "error " + std::to_string(number) : text;
}

bool carries_bytes(const Frame& frame) { return frame.kind == kEager || frame.kind == kData; }

}  // namespace

void Specimen::enqueue(int32_t rank, const Frame& frame, std::vector<std::byte> owned, OperationPtr send) {
  Peer& target = peer(rank);
  if (target.broken || target.fd < 0) return;
  target.outgoing.push_back({frame, std::move(owned), std::move(send), 0});
  if (target.outgoing.size() == 1) flush(rank);
}

// Writes as much as the connection takes now; the progress thread does the rest.
void Specimen::flush(int32_t rank) {
  Peer& target = peer(rank);
  for (int turn = 0; turn < kTurns && !target.outgoing.empty() && !target.broken; ++turn) {
    Outgoing& first = target.outgoing.front();
    const uint64_t size = carries_bytes(first.frame) ? first.frame.size : 0;
    const std::byte* bytes = first.send ? first.send->data : first.owned.data();
    std::array<iovec, 2> parts = {};
    size_t count = 0;
    if (first.sent < sizeof first.frame) {
      parts[count++] = {reinterpret_cast<char*>(&first.frame) + first.sent, sizeof first.frame - first.sent};
    }
    const uint64_t done = first.sent > sizeof first.frame ? first.sent - sizeof first.frame : 0;
    if (done < size) parts[count++] = {const_cast<std::byte*>(bytes) + done, std::min(kPiece, size - done)};
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(target.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) return break_off(rank, errno_text(errno));
    first.sent += static_cast<uint64_t>(sent);
    if (first.sent < sizeof first.frame + size) continue;
    const OperationPtr send = first.send;
    target.outgoing.pop_front();
    if (send) finish(*send);
  }
  if (!target.outgoing.empty() || leaving_) wake();
}

// Marks the connection as broken. Only the progress thread closes it.
void Specimen::break_off(int32_t rank, const std::string& why) {
  Peer& lost = peer(rank);
  if (lost.broken) return;
  lost.broken = true;
  if (!aborted_ && !leaving_ && !lost.left) report_failure(rank, why);
  ::shutdown(lost.fd, SHUT_RDWR);
  drop_peer(rank,
            sdk::Failure(BP_PEER_LOST, "the connection to rank " + std::to_string(rank) + " is gone: " + why, rank));
  lost.outgoing.clear();
  changed_.notify_all();
  wake();
}

void Specimen::read_peer(int32_t rank) {
  for (int turn = 0; turn < kTurns && !peer(rank).broken; ++turn) {
    if (!read_some(rank)) return;
  }
}

bool Specimen::read_some(int32_t rank) {
  Peer& source = peer(rank);
  std::byte* target = reinterpret_cast<std::byte*>(&source.frame) + source.have;
  uint64_t wanted = sizeof source.frame - source.have;
  const bool in_message = wanted == 0;
  if (in_message) {
    wanted = std::min(kPiece, source.frame.size - source.have_bytes);
    if (source.frame.kind == kEager) {
      target = source.bytes.data() + source.have_bytes;
    } else if (source.into) {
      target = source.into->data + source.have_bytes;
    } else {
      scratch_.resize(64 * 1024);
      target = scratch_.data();
      wanted = std::min<uint64_t>(wanted, scratch_.size());
    }
  }
  const ssize_t size = ::recv(source.fd, target, wanted, MSG_DONTWAIT);
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (size <= 0) {
    break_off(rank, size == 0 ? "its process has closed it" : errno_text(errno));
    return false;
  }
  if (in_message) {
    source.have_bytes += static_cast<uint64_t>(size);
  } else {
    source.have += static_cast<uint64_t>(size);
    if (source.have < sizeof source.frame) return true;
    if (!well_formed(rank, source.frame)) {
      break_off(rank, "it sent what is no frame of the specimen");
      return false;
    }
    source.have_bytes = 0;
    if (source.frame.kind == kEager) source.bytes.resize(source.frame.size);
    if (source.frame.kind == kData) {
      const auto receive = incoming_.find(source.frame.other);
      source.into = receive == incoming_.end() ? nullptr : receive->second;
    }
  }
  if (carries_bytes(source.frame)) {
    if (source.have_bytes < source.frame.size) return true;
    source.have = 0;
    on_message(rank);
  } else {
    source.have = 0;
    on_frame(rank, source.frame);
  }
  return true;
}

// Sizes are bounded before anything is allocated by them.
bool Specimen::well_formed(int32_t rank, const Frame& frame) {
  if (frame.kind < kEager || frame.kind > kGoodbyeAck || frame.channel >= kChannelCount) return false;
  if (frame.kind == kEager) return frame.size <= settings_->eager_limit;
  if (frame.kind == kCredit) return frame.size <= peer(rank).in_window;
  if (frame.kind == kData || frame.kind == kVoid) {
    const auto receive = incoming_.find(frame.other);
    if (receive == incoming_.end()) return true;  // given up since
    return receive->second->source == rank && frame.size <= receive->second->size;
  }
  return true;
}

void Specimen::on_message(int32_t rank) {
  Peer& source = peer(rank);
  const Frame& frame = source.frame;
  if (frame.kind == kEager) {
    return arrive({rank, frame.channel, frame.tag, frame.size, true, std::move(source.bytes), 0, nullptr, 0});
  }
  const OperationPtr receive = std::move(source.into);
  source.into = nullptr;
  if (!receive) return;
  incoming_.erase(receive->id);
  report(*receive, rank, frame.size);
  finish(*receive);
}

void Specimen::on_frame(int32_t rank, const Frame& frame) {
  switch (frame.kind) {
    case kRequest:
      if (!leaving_) arrive({rank, frame.channel, frame.tag, frame.size, false, {}, frame.id, nullptr, 0});
      return;
    case kReady:
      return on_ready(rank, frame);
    case kDrop:
      return on_drop(rank, frame);
    case kWithdraw:
      if (!matcher_.remove_request({rank, frame.channel, frame.tag, 0, false, {}, frame.id, nullptr, 0})) {
        withdraw_probed(rank, frame.id);
      }
      return;
    case kVoid:
      return on_void(rank, frame);
    case kCredit:
      peer(rank).in_window -= frame.size;
      return;
    case kGoodbye:
      return on_goodbye(rank);
    case kGoodbyeAck:
      peer(rank).goodbye_acknowledged = true;
      changed_.notify_all();
      return;
    default:
      return;  // well_formed lets nothing else pass
  }
}

void Specimen::on_ready(int32_t rank, const Frame& frame) {
  const auto found = waiting_sends_.find(frame.id);
  if (found == waiting_sends_.end() || found->second->peer != rank) {
    return enqueue(rank, {kVoid, frame.channel, 0, 0, 0, frame.other});
  }
  const OperationPtr send = found->second;
  waiting_sends_.erase(found);
  enqueue(rank, {kData, send->channel, send->tag, send->size, send->id, frame.other}, {}, send);
}

void Specimen::on_drop(int32_t rank, const Frame& frame) {
  const auto found = waiting_sends_.find(frame.id);
  if (found == waiting_sends_.end() || found->second->peer != rank) return;
  const OperationPtr send = found->second;
  waiting_sends_.erase(found);
  finish(*send);
}

void Specimen::on_void(int32_t rank, const Frame& frame) {
  const auto found = incoming_.find(frame.other);
  if (found == incoming_.end() || found->second->source != rank) return;
  const OperationPtr receive = found->second;
  incoming_.erase(found);
  receive->source = -1;
  if (receive->message != nullptr) return fail(*receive, withdrawn(rank));
  repost(receive);
}

void Specimen::on_goodbye(int32_t rank) {
  Peer& leaver = peer(rank);
  leaver.left = true;
  drop_peer(rank, sdk::Failure(BP_PEER_LOST, "rank " + std::to_string(rank) + " has left the group", rank));
  // The peer still takes begun messages, our goodbye and the acknowledgement of its own.
  std::erase_if(leaver.outgoing, [](const Outgoing& each) { return each.sent == 0 && each.frame.kind != kGoodbye; });
  enqueue(rank, {kGoodbyeAck, 0, 0, 0, 0, 0});
  changed_.notify_all();
}

}  // namespace backplane::specimen
