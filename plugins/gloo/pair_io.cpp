// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing of a pair, on gloo's thread or on the driver's.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <string>

#include "pair.hpp"
#include "tcp_device.hpp"

namespace backplane::gloo {
namespace {

constexpr uint32_t kIn = EPOLLIN;
constexpr uint32_t kOut = EPOLLOUT;
constexpr uint32_t kNone = EPOLLET;  // edge-triggered: a broken connection is reported once
constexpr int kReadsAtOnce = 64;
constexpr const char* kNoMemory = "this rank has no memory for a message that arrives";
constexpr size_t kDiscardedAtOnce = size_t{64} * 1024;

}  // namespace

int Pair::take() {
  const std::lock_guard lock(m_);
  if (state_ != CONNECTED) return -1;
  driven_ = true;
  expect_events(kNone);
  return fd_;
}

void Pair::give_back() {
  const std::lock_guard lock(m_);
  has_ended_ = false;
  if (state_ == CONNECTED) {
    const bool written = write_queued();
    expect_events(written ? kIn : kIn | kOut);
  }
  driven_ = false;
}

bool Pair::flush() {
  const std::lock_guard lock(m_);
  return state_ != CONNECTED || write_queued();
}

Pair::Progress Pair::advance() {
  const std::lock_guard lock(m_);
  const size_t queued = tx_.size();
  const bool written = state_ == CONNECTED && write_queued();
  bool moved = tx_.size() < queued;
  try {
    // Bounded, because the driver has a deadline.
    for (int reads = 0; reads < kReadsAtOnce && !has_ended_ && read(); ++reads) moved = true;
  } catch (const std::bad_alloc&) {
    end(kNoMemory);
    has_ended_ = true;
  } catch (const std::exception&) {
    ::shutdown(fd_, SHUT_RDWR);  // wakes gloo's thread, which sees the same error
    has_ended_ = true;
  }
  if (has_ended_ || state_ != CONNECTED) return Progress::kEnded;
  if (moved) return Progress::kMoved;
  return written ? Progress::kIdle : Progress::kBlocked;
}

// Sets the events that wake gloo's thread. A broken connection always does.
void Pair::expect_events(uint32_t events, int change) {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = static_cast<::gloo::transport::tcp::Handler*>(this);
  epoll_ctl(epoll_descriptor(*device_), change, fd_, &event);
}

// gloo removes its descriptor from its loop on close and aborts if it is not registered, as with a connection that ends
// right after accept.
void Pair::ensure_registered() { expect_events(kNone, EPOLL_CTL_ADD); }

// Exceptions end the connection here, under the lock: the pair may be destroyed once it is released.
void Pair::handleReadWrite(int events) {
  struct OnLoop {
    explicit OnLoop(bool& set) : flag(set) { flag = true; }
    ~OnLoop() { flag = false; }
    bool& flag;
  } const on_loop(on_loop_);
  try {
    move(events);
  } catch (const std::bad_alloc&) {
    if (state_ != CLOSED) signal_end(kNoMemory);
  } catch (const std::exception& e) {
    if (state_ != CLOSED) signal_end(e.what());
  }
}

void Pair::move(int events) {
  if (driven_) {
    // Data that a thread without the driver role could not write at once.
    const bool written = write_queued();
    if (state_ == CLOSED) return;
    if (!written) {
      expect_events(kOut);
    } else if ((events & EPOLLOUT) != 0) {
      expect_events(kNone);
    }
    return;
  }
  if ((events & EPOLLOUT) != 0) {
    const bool written = write_queued();
    if (state_ == CLOSED) return;
    if (written) expect_events(kIn);
  }
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
    while (read()) {
    }
  }
}

// Returns true if nothing is left.
bool Pair::write_queued() {
  while (!pending_notifications_.empty()) {
    const ssize_t written = ::send(fd_, pending_notifications_.data(), pending_notifications_.size(), MSG_NOSIGNAL);
    if (written >= 0) {
      pending_notifications_.erase(0, static_cast<size_t>(written));
    } else if (errno != EINTR) {
      if (errno != EAGAIN && on_loop_) signal_end(std::string("cannot send: ") + std::strerror(errno));
      return false;
    }
  }
  while (!tx_.empty() && write(tx_.front())) tx_.pop_front();
  return tx_.empty();
}

// Differs from the overridden function in SIGPIPE, errors and drivers. Leaves errors on a user's thread to gloo's
// thread, which sees them at once: closing here would wait for that thread, which may wait for a lock of the caller.
bool Pair::write(Op& op) {
  if (state_ == CLOSED) return false;
  const bool queued = !tx_.empty();  // a queued operation is the first in the queue; gloo writes a new one directly
                                     // only if the queue is empty
  BufferRef buffer(op.ubuf);
  if (op.getOpcode() == Op::SEND_UNBOUND_BUFFER && !buffer) {
    if (on_loop_) signal_end("a message was cancelled while it was being sent");
    return false;
  }
  if (op.getOpcode() != Op::SEND_UNBOUND_BUFFER && !queued && is_driver()) {
    pending_notifications_.append(reinterpret_cast<const char*>(&op.preamble), sizeof(op.preamble));
    return true;
  }
  while (op.nwritten < op.preamble.nbytes) {
    std::array<iovec, 3> pieces;
    pieces[0] = {pending_notifications_.data(), pending_notifications_.size()};
    int count = 0;
    prepareWrite(op, buffer.for_gloo(), &pieces[1], count);
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = static_cast<size_t>(count) + 1;
    const ssize_t written = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (written >= 0) {
      const size_t of_pending = std::min(static_cast<size_t>(written), pending_notifications_.size());
      pending_notifications_.erase(0, of_pending);
      op.nwritten += static_cast<size_t>(written) - of_pending;
    } else if (errno != EINTR) {
      if (errno != EAGAIN && on_loop_) signal_end(std::string("cannot send: ") + std::strerror(errno));
      if (queued || !is_driver()) return false;
      tx_.push_back(std::move(op));  // here, because gloo would wake its own thread
      return true;
    }
  }
  writeComplete(op, buffer.for_gloo(), op.getOpcode());
  return true;
}

bool Pair::read() {
  // What arrives after end() belongs to no receive.
  if (state_ != CLOSED && end_reason_ != nullptr) throw ::gloo::IoException(end_reason_);
  if (state_ == CLOSED || !read_preamble()) return false;
  const size_t opcode = rx_.preamble.opcode;
  if (opcode == Op::SEND_UNBOUND_BUFFER) {
    if (!spill_) prepare_payload();
    if (spill_) return read_spill();
    if (!read_payload()) return false;
  } else if (opcode != Op::NOTIFY_SEND_READY && opcode != Op::NOTIFY_RECV_READY) {
    throw ::gloo::IoException("it sent data that are no message");  // gloo would wait for a registered buffer
  }
  const BufferRef visit(rx_.ubuf);
  return ::gloo::transport::tcp::Pair::read();
}

void Pair::signal_end(const std::string& seen) { signalException(end_reason_ == nullptr ? seen : end_reason_); }

// Returns false if it is incomplete or the connection has ended.
bool Pair::read_preamble() {
  while (rx_.nread < sizeof(rx_.preamble)) {
    const size_t got = receive(reinterpret_cast<char*>(&rx_.preamble) + rx_.nread, sizeof(rx_.preamble) - rx_.nread);
    if (got == 0) return false;
    rx_.nread += got;
  }
  return true;
}

// Returns false if it is incomplete or the connection has ended.
bool Pair::read_payload() {
  const BufferRef buffer(rx_.ubuf);
  if (!buffer) return false;
  const size_t end = sizeof(rx_.preamble) + rx_.preamble.length;
  while (rx_.nread < end) {
    char* const start = static_cast<char*>(buffer->ptr) + rx_.offset;
    const size_t got = receive(start + (rx_.nread - sizeof(rx_.preamble)), end - rx_.nread);
    if (got == 0) return false;
    rx_.nread += got;
  }
  return true;
}

// Returns false if it is incomplete or the connection has ended.
bool Pair::read_spill() {
  std::array<char, kDiscardedAtOnce> discarded;
  while (spill_->arrived < spill_->length) {
    std::span<char> to = spill_->is_kept ? spill_->kept.room(spill_->arrived, spill_->length) : discarded;
    if (to.size() > spill_->length - spill_->arrived) to = to.first(spill_->length - spill_->arrived);
    const size_t got = receive(to.data(), to.size());
    if (got == 0) return false;
    spill_->arrived += got;
  }
  finish_spill();
  return true;
}

// Returns 0 if there are no data or the connection has ended.
size_t Pair::receive(void* to, size_t bytes) {
  for (;;) {
    const ssize_t got = ::recv(fd_, to, bytes, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return 0;
    has_ended_ = true;
    if (on_loop_) {
      signal_end(got == 0 ? std::string("the connection was closed")
                          : std::string("cannot receive: ") + std::strerror(errno));
    }
    return 0;
  }
}

}  // namespace backplane::gloo
