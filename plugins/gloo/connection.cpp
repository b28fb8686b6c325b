// SPDX-License-Identifier: Apache-2.0
#include "connection.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tcp_device.hpp"
#include "transport.hpp"

namespace backplane::gloo {
namespace {

constexpr int kBacklog = 16;  // gloo's own is 1

// gloo opens its sockets without close-on-exec.
void close_on_exec(int fd) {
  if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

}  // namespace

Connection::Connection(GlooPair& pair, Context& owner, Link& link, Sending& sending,
                       std::shared_ptr<const Health> health)
    : pair_(pair),
      owner_(owner),
      link_(link),
      sending_(sending),
      health_(std::move(health)),
      admission_({owner.token(), pair.rank_}, owner.pending_connections()) {}

void Connection::begin_listening() {
  close_on_exec(pair_.fd_);
  fcntl(pair_.fd_, F_SETFL, fcntl(pair_.fd_, F_GETFL) | O_NONBLOCK);
  ::listen(pair_.fd_, kBacklog);
}

bool Connection::is_listening() {
  const std::lock_guard lock(pair_.m_);
  return pair_.state_ == GlooPair::LISTENING;
}

void Connection::prepare_connect(const Token& token_of_peer, Clock::time_point deadline) {
  const std::lock_guard lock(pair_.m_);
  hello_ = {token_of_peer, owner_.rank};
  connect_deadline_ = deadline;
}

void Connection::admit_peer() {
  try {
    base::Descriptor peer = admission_.admit(pair_.fd_, epoll_descriptor(*pair_.device_), &pair_);
    if (admission_.take_refused()) owner_.report_refused();
    if (!peer) return;
    pair_.device_->unregisterDescriptor(pair_.fd_, &pair_);
    ::close(pair_.fd_);
    pair_.fd_ = peer.release();
    pair_.handleConnected();
  } catch (const std::exception& e) {
    if (pair_.state_ != GlooPair::CLOSED) pair_.signalException(e.what());
  }
}

// The send buffer of a new connection has room for it. A connection that has ended is reported by the next read.
void Connection::send_hello() noexcept { ::send(pair_.fd_, &hello_, sizeof(hello_), MSG_NOSIGNAL | MSG_DONTWAIT); }

void Connection::close_candidates() noexcept { admission_.close(epoll_descriptor(*pair_.device_)); }

void Connection::before_close() noexcept {
  if (pair_.state_ != GlooPair::INITIALIZING && pair_.fd_ >= 0) link_.ensure_registered();
}

void Connection::on_change(bool connected) noexcept {
  close_on_exec(pair_.fd_);
  if (!connected) return;
  if (pair_.is_client_) send_hello();
  was_connected_ = true;
}

void Connection::wait_until_connected(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    pair_.throwIfException();
    if (pair_.state_ >= GlooPair::CONNECTED) return;
    health_->check();
    const Clock::time_point now = Clock::now();
    if (now >= connect_deadline_) {
      throw sdk::Failure(BP_TIMEOUT,
                         "rank " + std::to_string(pair_.rank_) + " (" + pair_.peer_.str() + ") did not connect in time",
                         pair_.rank_);
    }
    pair_.cv_.wait_until(lock, std::min(connect_deadline_, now + kCheckInterval));
  }
}

// Shutting down the reading side makes gloo's thread see the end of the connection, as if the peer had closed it, or an
// error of accept.
void Connection::shut_down() noexcept {
  const std::lock_guard lock(pair_.m_);
  const bool has_socket = pair_.state_ == GlooPair::CONNECTED || pair_.state_ == GlooPair::LISTENING;
  if (has_socket && pair_.fd_ >= 0) ::shutdown(pair_.fd_, SHUT_RD);
}

bool Connection::is_open() {
  const std::lock_guard lock(pair_.m_);
  return pair_.state_ == GlooPair::CONNECTED;
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
                     [this] { return pair_.state_ != GlooPair::CONNECTED && pair_.state_ != GlooPair::LISTENING; });
}

}  // namespace backplane::gloo
