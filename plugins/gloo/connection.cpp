// SPDX-License-Identifier: Apache-2.0
#include "connection.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "tcp_device.hpp"
#include "transport.hpp"

namespace backplane::gloo {
namespace {

// Whether an attempt to connect has ended.
bool has_connected_or_failed(int fd) {
  pollfd item = {fd, POLLOUT, 0};
  return ::poll(&item, 1, 0) > 0;
}

std::string text_of(const Endpoint& endpoint) {
  socklen_t size = 0;
  const sockaddr_storage address = address_of(endpoint, &size);
  return ::gloo::transport::tcp::Address(reinterpret_cast<const sockaddr*>(&address), size).str();
}

}  // namespace

// Without gloo's function, which would wait for a turn of gloo's loop, up to 10 ms. A late event finds the pair unused.
void Connection::close_gloos_listener() noexcept {
  epoll_ctl(epoll_descriptor(*pair_.device_), EPOLL_CTL_DEL, pair_.fd_, nullptr);
  ::close(pair_.fd_);
  pair_.fd_ = -1;
  pair_.state_ = GlooPair::INITIALIZING;
}

bool Connection::is_unused() {
  const std::lock_guard lock(pair_.m_);
  return pair_.state_ == GlooPair::INITIALIZING;
}

void Connection::set_endpoint(const Endpoint& endpoint) {
  const std::lock_guard lock(pair_.m_);
  endpoint_ = endpoint;
}

void Connection::begin() {
  const std::lock_guard lock(pair_.m_);
  if (pair_.state_ != GlooPair::INITIALIZING) return;
  socklen_t size = 0;
  const sockaddr_storage address = address_of(endpoint_, &size);
  base::Descriptor socket(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    throw sdk::Failure(BP_RESOURCE,
                       "gloo: no descriptor left for the connection to rank " + std::to_string(pair_.rank_) + " (" +
                           std::strerror(errno) + "); raise this process's limit (ulimit -n)",
                       -1, errno);
  }
  const bool failed =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 && errno != EINPROGRESS;
  if (failed) return fail(std::string("cannot connect: ") + std::strerror(errno));
  pair_.device_->registerDescriptor(socket.get(), EPOLLOUT, &pair_);
  pair_.fd_ = socket.release();
  pair_.changeState(GlooPair::CONNECTING);
}

void Connection::advance() noexcept {
  const Link::OnLoop on_loop(link_);
  try {
    if (!has_said_hello_) {
      if (has_connected_or_failed(pair_.fd_)) say_hello();
    } else {
      read_answer();
    }
  } catch (const std::exception& e) {
    if (pair_.state_ != GlooPair::CLOSED) link_.close(e.what());
  }
}

// The send buffer of a new connection has room for it.
void Connection::say_hello() {
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(pair_.fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  const Hello hello = {endpoint_.token, owner_.rank};
  if (error == 0 && ::send(pair_.fd_, &hello, sizeof(hello), MSG_NOSIGNAL) < 0) error = errno;
  if (error != 0) return fail(std::string("cannot connect: ") + std::strerror(error));
  has_said_hello_ = true;
  link_.expect_events(Link::kIn);
}

void Connection::read_answer() {
  while (answered_ < answer_.size()) {
    const ssize_t got = ::recv(pair_.fd_, answer_.data() + answered_, answer_.size() - answered_, 0);
    if (got > 0) {
      answered_ += static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    } else if (got == 0 || errno != EINTR) {
      return fail("it has refused the connection, or left");
    }
  }
  if (answer_ != endpoint_.answer) return fail("another process listens at its address");
  establish();
}

// The peer's own attempt may have reached this rank, which a firewall of one direction can cause.
void Connection::fail(const std::string& why) {
  if (spare_) return adopt(std::move(spare_));
  link_.close(why + " (it listens on " + text_of(endpoint_) + ", this rank on " + owner_.own_address() + ")");
}

void Connection::accept(base::Descriptor socket) noexcept {
  const Link::OnLoop on_loop(link_);
  try {
    if (pair_.state_ == GlooPair::CONNECTING && owner_.rank < pair_.rank_ && has_said_hello_) {
      spare_ = std::move(socket);
    } else if (pair_.state_ == GlooPair::CONNECTING || pair_.state_ == GlooPair::INITIALIZING) {
      adopt(std::move(socket));
    }
  } catch (const std::exception& e) {
    if (pair_.state_ != GlooPair::CLOSED) link_.close(e.what());
  }
}

// Uses a connection that the peer has opened, in the place of this rank's attempt.
void Connection::adopt(base::Descriptor socket) {
  if (pair_.fd_ >= 0) {
    pair_.device_->unregisterDescriptor(pair_.fd_, &pair_);
    ::close(pair_.fd_);
  }
  pair_.fd_ = socket.release();
  if (pair_.state_ != GlooPair::CONNECTING) pair_.changeState(GlooPair::CONNECTING);
  const Token& answer = owner_.endpoint().answer;
  ::send(pair_.fd_, answer.data(), answer.size(), MSG_NOSIGNAL);  // an error is reported by the next read
  establish();
}

// Writes what the operations before have queued.
void Connection::establish() {
  pair_.handleConnected();
  spare_.reset();
  if (!sending_.write_queued() && pair_.state_ == GlooPair::CONNECTED) link_.expect_events(Link::kIn | Link::kOut);
}

void Connection::on_change(bool connected) noexcept {
  is_used_.store(true, std::memory_order_release);
  was_connected_ = was_connected_ || connected;
}

// With a new connection that has failed, gloo's thread may not know the descriptor.
void Connection::before_close() noexcept {
  is_used_.store(true, std::memory_order_release);
  spare_.reset();
  if (pair_.state_ != GlooPair::INITIALIZING && pair_.fd_ >= 0) link_.ensure_registered();
}

// Shutting down the reading side makes gloo's thread see the end of the connection, as if the peer had closed it, or an
// error of the attempt to connect.
void Connection::shut_down() noexcept {
  const std::lock_guard lock(pair_.m_);
  spare_.reset();
  if (pair_.state_ == GlooPair::INITIALIZING) {
    try {
      link_.close("this rank closed the connection");
    } catch (const std::exception&) {  // no memory: the group's failure ends its operations
    }
  } else if (pair_.state_ != GlooPair::CLOSED && pair_.fd_ >= 0) {
    ::shutdown(pair_.fd_, SHUT_RD);
  }
}

bool Connection::is_connecting() {
  const std::lock_guard lock(pair_.m_);
  return pair_.state_ == GlooPair::CONNECTING;
}

bool Connection::is_used_and_open() {
  const std::lock_guard lock(pair_.m_);
  return pair_.state_ == GlooPair::CONNECTING || pair_.state_ == GlooPair::CONNECTED;
}

bool Connection::has_ended() {
  const std::lock_guard lock(pair_.m_);
  return pair_.state_ == GlooPair::CLOSED;
}

bool Connection::was_connected() {
  const std::lock_guard lock(pair_.m_);
  return was_connected_;
}

bool Connection::is_flushed() {
  const std::lock_guard lock(pair_.m_);
  int unsent = 0;
  return pair_.state_ != GlooPair::CONNECTED ||
         (sending_.is_empty() && (ioctl(pair_.fd_, SIOCOUTQ, &unsent) != 0 || unsent == 0));
}

void Connection::wait_closed() {
  std::unique_lock lock(pair_.m_);
  pair_.cv_.wait_for(lock, 2 * kCheckInterval,
                     [this] { return pair_.state_ != GlooPair::CONNECTED && pair_.state_ != GlooPair::CONNECTING; });
}

}  // namespace backplane::gloo
