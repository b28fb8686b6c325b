// SPDX-License-Identifier: Apache-2.0
#include "sender.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace backplane::zmq {
namespace {

// Data up to this size is copied, so that its send is done at once. For larger data it is cheaper to wait until libzmq
// releases the buffer.
constexpr size_t kCopied = 65536;

// A piece of a send's buffer that libzmq reads. libzmq calls `release` on any thread.
struct Borrowed {
  std::shared_ptr<sdk::BorrowedBuffer> buffer;
  const base::EventFd* wake;
};
void release(void*, void* hint) {
  const std::unique_ptr<Borrowed> borrowed(static_cast<Borrowed*>(hint));
  const std::shared_ptr<sdk::Completion> sent = borrowed->buffer->sent();
  borrowed->buffer.reset();
  if (sent->done()) borrowed->wake->raise();
}

}  // namespace

void Sender::connect(int32_t rank) {
  Peer& peer = peers_[rank];
  if (rank == session_.rank || peer.needed || peer.is_closed) return;
  peer.needed = true;
  if (notify_unresolved_) notify_unresolved_();
}

std::vector<int32_t> Sender::unresolved() const {
  std::vector<int32_t> ranks;
  for (const auto& [rank, peer] : peers_) {
    if (peer.needed && !peer.dialled && !peer.is_closed) ranks.push_back(rank);
  }
  return ranks;
}

bool Sender::dial(int32_t rank, const std::string& endpoint, const std::string& public_key) {
  Peer& peer = peers_[rank];
  if (peer.is_closed || peer.dialled) return true;
  const bool known = endpoint.starts_with("tcp://") || endpoint.starts_with("ipc://@");
  if (endpoint.size() > 256 || !known) return false;
  try {
    sockets_.dial(rank, endpoint, sockets_.secure() ? public_key : std::to_string(session_.token));
  } catch (const ::zmq::error_t&) {
    return false;
  }
  peer.dialled = true;
  send_to(rank);
  return true;
}

void Sender::close_all() {
  ready_.clear();
  for (auto& [rank, peer] : peers_) peer.is_closed = true;
}

// Without an exception: the messenger has queued the frame.
void Sender::note_ready(int32_t rank) noexcept {
  try {
    ready_.push_back(rank);
  } catch (const std::bad_alloc&) {
    has_more_ready_ = true;
  }
}

void Sender::send_ready() {
  for (size_t i = 0; i < ready_.size(); ++i) {
    connect(ready_[i]);
    send_to(ready_[i]);
  }
  ready_.clear();
  if (!std::exchange(has_more_ready_, false)) return;
  for (int32_t rank = 0; rank < session_.world_size; ++rank) {
    if (!messenger_.has_frame(rank)) continue;
    connect(rank);
    send_to(rank);
  }
}

// Hands the peer's frames to libzmq, as far as there is room.
void Sender::send_to(int32_t rank) {
  Peer& peer = peers_[rank];
  while (peer.dialled && !peer.is_closed) {
    const bool has_frame = peer.introduced && messenger_.has_frame(rank);
    if (peer.introduced && !has_frame && !peer.is_leaving) return;
    const Sent sent = sockets_.begin(rank);
    if (sent == Sent::kNotConnected) return;  // the broken connection will be reported
    if (sent == Sent::kFull) {
      if (std::find(backlog_.begin(), backlog_.end(), rank) == backlog_.end()) backlog_.push_back(rank);
      return;
    }
    if (has_frame) {
      send_frame(rank);
    } else {
      ::zmq::message_t message =
          session_.compose(peer.introduced ? Kind::kGoodbye : Kind::kHello, static_cast<uint64_t>(rank));
      sockets_.send_part(message, false);
      if (peer.introduced) peer.is_leaving = false;
      peer.introduced = true;
    }
    ++peer.sent;
  }
}

void Sender::send_frame(int32_t rank) {
  sdk::Messenger::Frame frame;
  messenger_.next(rank, frame);
  const bool borrows = frame.data.size() > kCopied;
  const size_t behind = borrows ? 0 : frame.data.size();
  const Header front = session_.header(Kind::kFrame);
  ::zmq::message_t message(kHeadSize + behind);
  std::memcpy(message.data(), &front, sizeof front);
  std::memcpy(message.data<std::byte>() + sizeof front, &frame.head, sizeof frame.head);
  if (behind > 0) std::memcpy(message.data<std::byte>() + kHeadSize, frame.data.data(), behind);
  sockets_.send_part(message, borrows);
  if (!borrows) return;
  auto* const data = const_cast<std::byte*>(frame.data.data());
  ::zmq::message_t body(data, frame.data.size(), &release, new Borrowed{std::move(frame.buffer), &wake_});
  sockets_.send_part(body, false);
}

void Sender::retry() {
  for (const int32_t rank : std::exchange(backlog_, {})) send_to(rank);
}

void Sender::begin_goodbye() {
  for (auto& [rank, peer] : peers_) {
    if (!peer.dialled || peer.is_closed) continue;
    peer.is_leaving = true;
    send_to(rank);
  }
}

bool Sender::goodbye_confirmed() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return !entry.second.dialled || entry.second.goodbye_acknowledged || entry.second.is_closed;
  });
}

}  // namespace backplane::zmq
