// SPDX-License-Identifier: Apache-2.0
//
// The start and the end of a pair's connection.
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <thread>

#include "pair.hpp"
#include "tcp_device.hpp"

namespace backplane::gloo {
namespace {

constexpr std::chrono::milliseconds kGloosOwnTimeout{0};  // none: deadlines are checked by this plugin
constexpr int kBacklog = 16;                              // gloo's own is 1

// gloo opens its sockets without close-on-exec.
void close_on_exec(int fd) {
  if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// Whether an attempt to connect has ended.
bool has_connected_or_failed(int fd) {
  pollfd item = {fd, POLLOUT, 0};
  return ::poll(&item, 1, 0) > 0;
}

}  // namespace

Pair::Pair(Context& context, ::gloo::transport::tcp::Device* device, std::shared_ptr<const Health> health, int peer)
    : PairState(context, std::move(health), peer),
      ::gloo::transport::tcp::Pair(&context, device, peer, kGloosOwnTimeout) {
  const std::lock_guard lock(m_);
  if (state_ != LISTENING) return;  // see is_listening
  close_on_exec(fd_);
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  ::listen(fd_, kBacklog);
}

// Closes here, while the object is still a Pair, because gloo's thread may be inside a function of this class.
Pair::~Pair() {
  const std::lock_guard lock(m_);
  admission_.close(epoll_descriptor(*device_));
  if (state_ == CLOSED) return;
  if (state_ != INITIALIZING && fd_ >= 0) ensure_registered();
  ::gloo::transport::tcp::Pair::changeState(CLOSED);
}

bool Pair::is_listening() {
  const std::lock_guard lock(m_);
  return state_ == LISTENING;
}

void Pair::prepare_connect(const Token& token_of_peer, Clock::time_point deadline) {
  hello_ = {token_of_peer, owner_.rank};
  connect_deadline_ = deadline;
}

void Pair::handleEvents(int events) {
  {
    const std::unique_lock lock(m_, std::try_to_lock);
    // The thread that holds the lock may be waiting for this core. gloo would spin until the scheduler's next tick.
    if (!lock) return std::this_thread::yield();
    if (state_ == LISTENING) return admit_peer();
    if (state_ == CONNECTING && !has_connected_or_failed(fd_)) return;  // an event of a socket that is closed by now
  }
  try {
    ::gloo::transport::tcp::Pair::handleEvents(events);
  } catch (const std::exception& e) {                   // while connecting
    const std::unique_lock lock(m_, std::try_to_lock);  // the holder may be waiting for this thread
    if (lock && state_ != CLOSED) signalException(e.what());
  }
}

// Replaces the listening socket by the connection of the peer, if it has come.
void Pair::admit_peer() {
  try {
    base::Descriptor peer = admission_.admit(fd_, epoll_descriptor(*device_), this);
    if (admission_.take_refused()) owner_.report_refused();
    if (!peer) return;
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = peer.release();
    handleConnected();
  } catch (const std::exception& e) {
    if (state_ != CLOSED) signalException(e.what());
  }
}

// The send buffer of a new connection has room for it. A connection that has ended is reported by the next read.
void Pair::send_hello() noexcept { ::send(fd_, &hello_, sizeof(hello_), MSG_NOSIGNAL | MSG_DONTWAIT); }

// Called for every end of a connection, under the lock. gloo fails the operations that have not begun. This function
// fails the others.
void Pair::changeState(state next) noexcept {
  const bool ends = next == CLOSED && state_ != CLOSED;
  admission_.close(epoll_descriptor(*device_));
  if (ends && state_ != INITIALIZING && fd_ >= 0) ensure_registered();
  ::gloo::transport::tcp::Pair::changeState(next);
  if (next == CONNECTED || next == CONNECTING) close_on_exec(fd_);
  if (next == CONNECTED && is_client_) send_hello();
  was_connected_ = was_connected_ || next == CONNECTED;
  if (!ends) return;
  owner_.record_loss(rank_);
  const std::exception_ptr error =
      ex_ ? ex_ : std::make_exception_ptr(::gloo::IoException("this rank closed the connection"));
  const auto tell = [&error](const WeakBuffer& target) {
    const BufferRef buffer(target);
    if (buffer) buffer->fail(error);
  };
  tell(rx_.ubuf);
  if (spill_) tell(spill_->receiver);
  for (const Op& op : tx_) tell(op.ubuf);
}

void Pair::waitUntilConnected(std::unique_lock<std::mutex>& lock, bool) {
  for (;;) {
    throwIfException();
    if (state_ >= CONNECTED) return;
    health_->check();
    const Clock::time_point now = Clock::now();
    if (now >= connect_deadline_) {
      throw sdk::Failure(BP_TIMEOUT, "rank " + std::to_string(rank_) + " (" + peer_.str() + ") did not connect in time",
                         rank_);
    }
    cv_.wait_until(lock, std::min(connect_deadline_, now + kCheckInterval));
  }
}

// Shutting down the reading side makes gloo's thread see the end of the connection, as if the peer had closed it, or an
// error of accept.
void Pair::shut_down() noexcept {
  const std::lock_guard lock(m_);
  if ((state_ == CONNECTED || state_ == LISTENING) && fd_ >= 0) ::shutdown(fd_, SHUT_RD);
}

// With m_ held. Does not close, because that would wait for gloo's thread, which may wait for a lock of the caller.
void Pair::end(const char* why) noexcept {
  if (state_ != CONNECTED || fd_ < 0) return;
  if (end_reason_ == nullptr) end_reason_ = why;
  ::shutdown(fd_, SHUT_RDWR);
}

bool Pair::is_open() {
  const std::lock_guard lock(m_);
  return state_ == CONNECTED;
}

bool Pair::was_connected() {
  const std::lock_guard lock(m_);
  return was_connected_;
}

bool Pair::is_flushed() {
  const std::lock_guard lock(m_);
  int unsent = 0;
  return state_ != CONNECTED ||
         (tx_.empty() && pending_notifications_.empty() && (ioctl(fd_, SIOCOUTQ, &unsent) != 0 || unsent == 0));
}

void Pair::wait_closed() {
  std::unique_lock lock(m_);
  cv_.wait_for(lock, 2 * kCheckInterval, [this] { return state_ != CONNECTED && state_ != LISTENING; });
}

}  // namespace backplane::gloo
