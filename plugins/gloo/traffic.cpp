// SPDX-License-Identifier: Apache-2.0
//
// What a pair reads and writes, on gloo's thread or on its driver's.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "device.hpp"
#include "pair.hpp"

namespace backplane::gloo {
namespace {

constexpr uint32_t kIn = EPOLLIN;
constexpr uint32_t kOut = EPOLLOUT;
constexpr uint32_t kNone = EPOLLET;  // that a connection has broken down is told once, not again and again
constexpr int kReadsAtOnce = 64;

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
  ended_ = false;
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
    // Not for ever: whoever drives has a deadline of its own.
    for (int reads = 0; reads < kReadsAtOnce && !ended_ && read(); ++reads) moved = true;
  } catch (const std::exception&) {
    ended_ = true;  // gloo's thread meets the same
  }
  if (ended_ || state_ != CONNECTED) return Progress::kEnded;
  if (moved) return Progress::kMoved;
  return written ? Progress::kIdle : Progress::kBlocked;
}

// What gloo's thread is to be woken for. It always is when a connection breaks down.
void Pair::expect_events(uint32_t events, int change) {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = static_cast<::gloo::transport::tcp::Handler*>(this);
  epoll_ctl(epoll_descriptor(*device_), change, fd_, &event);
}

// gloo takes its descriptor out of its loop when it closes, and ends the process if it is not in there: as when the
// connection that it has just accepted is gone again.
void Pair::be_registered() { expect_events(kNone, EPOLL_CTL_ADD); }

// What gloo throws ends the connection here, under the lock: once that is free the pair may be.
void Pair::handleReadWrite(int events) {
  struct OnLoop {
    explicit OnLoop(bool& set) : flag(set) { flag = true; }
    ~OnLoop() { flag = false; }
    bool& flag;
  } const on_loop(on_loop_);
  try {
    move(events);
  } catch (const std::exception& e) {
    if (state_ != CLOSED) signalException(e.what());
  }
}

void Pair::move(int events) {
  if (driven_) {
    // Only for what a thread that does not drive could not write at once.
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

// True: all of it.
bool Pair::write_queued() {
  while (!held_.empty()) {
    const ssize_t written = ::send(fd_, held_.data(), held_.size(), MSG_NOSIGNAL);
    if (written >= 0) {
      held_.erase(0, static_cast<size_t>(written));
    } else if (errno != EINTR) {
      if (errno != EAGAIN && on_loop_) signalException(std::string("cannot send: ") + std::strerror(errno));
      return false;
    }
  }
  while (!tx_.empty() && write(tx_.front())) tx_.pop_front();
  return tx_.empty();
}

// Like the overridden one but for SIGPIPE, errors and drivers. On a thread of the user an error is left to gloo's
// thread, which meets it at once: closing waits for that thread, which may wait for a lock that this one holds.
bool Pair::write(Op& op) {
  if (state_ == CLOSED) return false;
  const bool queued = !tx_.empty();  // then it is the first of those; gloo writes a new one at once only if none waits
  Visit buffer(op.ubuf);
  if (op.getOpcode() == Op::SEND_UNBOUND_BUFFER && !buffer) {
    if (on_loop_) signalException("a message was given up while it was being sent");
    return false;
  }
  if (op.getOpcode() != Op::SEND_UNBOUND_BUFFER && !queued && is_driver()) {
    held_.append(reinterpret_cast<const char*>(&op.preamble), sizeof(op.preamble));
    return true;
  }
  while (op.nwritten < op.preamble.nbytes) {
    std::array<iovec, 3> pieces;
    pieces[0] = {held_.data(), held_.size()};
    int count = 0;
    prepareWrite(op, buffer.for_gloo(), &pieces[1], count);
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = static_cast<size_t>(count) + 1;
    const ssize_t written = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (written >= 0) {
      const size_t of_held = std::min(static_cast<size_t>(written), held_.size());
      held_.erase(0, of_held);
      op.nwritten += static_cast<size_t>(written) - of_held;
    } else if (errno != EINTR) {
      if (errno != EAGAIN && on_loop_) signalException(std::string("cannot send: ") + std::strerror(errno));
      if (queued || !is_driver()) return false;
      tx_.push_back(std::move(op));  // here, because gloo would wake its own thread for it
      return true;
    }
  }
  writeComplete(op, buffer.for_gloo(), op.getOpcode());
  return true;
}

bool Pair::read() {
  if (state_ == CLOSED || !read_preamble()) return false;
  if (rx_.getOpcode() == Op::SEND_UNBOUND_BUFFER) {
    prepare_payload();
    if (rx_.ubuf && !read_payload()) return false;
  }
  if (const Visit visit(rx_.ubuf); !::gloo::transport::tcp::Pair::read()) return false;
  if (spill_) finish_spill();
  return true;
}

// False: not all of it has come yet, or the connection has ended.
bool Pair::read_preamble() {
  while (rx_.nread < sizeof(rx_.preamble)) {
    const size_t got = receive(reinterpret_cast<char*>(&rx_.preamble) + rx_.nread, sizeof(rx_.preamble) - rx_.nread);
    if (got == 0) return false;
    rx_.nread += got;
  }
  return true;
}

// The same.
bool Pair::read_payload() {
  const Visit buffer(rx_.ubuf);
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

// 0: nothing is there, or the connection has ended.
size_t Pair::receive(void* to, size_t bytes) {
  for (;;) {
    const ssize_t got = ::recv(fd_, to, bytes, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return 0;
    ended_ = true;
    if (on_loop_) {
      signalException(got == 0 ? std::string("the connection was closed")
                               : std::string("cannot receive: ") + std::strerror(errno));
    }
    return 0;
  }
}

}  // namespace backplane::gloo
