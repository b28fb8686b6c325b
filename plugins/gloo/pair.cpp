// SPDX-License-Identifier: Apache-2.0
#include "pair.hpp"

#include <poll.h>

#include <thread>

#include "tcp_device.hpp"

namespace backplane::gloo {
namespace {

constexpr std::chrono::milliseconds kGloosOwnTimeout{0};  // none: deadlines are checked by this plugin

// Whether an attempt to connect has ended.
bool has_connected_or_failed(int fd) {
  pollfd item = {fd, POLLOUT, 0};
  return ::poll(&item, 1, 0) > 0;
}

}  // namespace

Pair::Pair(Context& context, ::gloo::transport::tcp::Device* device, std::shared_ptr<const Health> health, int peer)
    : GlooPair(&context, device, peer, kGloosOwnTimeout),
      owner_(context),
      link_(*this),
      sending_(*this, link_, health),
      receiving_(*this, context, link_, health),
      progress_(*this, context, link_, sending_),
      connection_(*this, context, link_, sending_, health) {
  const std::lock_guard lock(m_);
  is_constructed_ = true;
  if (state_ == LISTENING) connection_.begin_listening();
}

// Closes here, while the object is still a Pair, because gloo's thread may be inside a function of this class.
Pair::~Pair() {
  const std::lock_guard lock(m_);
  connection_.close_candidates();
  if (state_ == CLOSED) return;
  connection_.before_close();
  Base::changeState(CLOSED);
}

void Pair::send(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  ProgressScope::attach(*this);
  Base::send(buffer, slot, offset, bytes);
}

void Pair::recv(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  ProgressScope::attach(*this);
  Base::recv(buffer, slot, offset, bytes);
}

void Pair::handleEvents(int events) {
  {
    const std::unique_lock lock(m_, std::try_to_lock);
    // The thread that holds the lock may be waiting for this core. gloo would spin until the scheduler's next tick.
    if (!lock) return std::this_thread::yield();
    if (!is_constructed_) return;
    if (state_ == LISTENING) return connection_.admit_peer();
    if (state_ == CONNECTING && !has_connected_or_failed(fd_)) return;  // an event of a socket that is closed by now
  }
  try {
    Base::handleEvents(events);
  } catch (const std::exception& e) {                   // while connecting
    const std::unique_lock lock(m_, std::try_to_lock);  // the holder may be waiting for this thread
    if (lock && state_ != CLOSED) signalException(e.what());
  }
}

bool Pair::read() {
  if (state_ == CLOSED) return false;
  link_.check_not_ended();  // what arrives after end() belongs to no receive
  const Arrival::Result result = receiving_.arrival().read();
  if (result != Arrival::Result::kRead) return result == Arrival::Result::kDone;
  const BufferRef visit(rx_.ubuf);
  return Base::read();
}

// Called for every end of a connection, under the lock. gloo fails the operations that have not begun. This function
// fails the others.
void Pair::changeState(state next) noexcept {
  const bool ends = next == CLOSED && state_ != CLOSED;
  connection_.close_candidates();
  if (ends) connection_.before_close();
  Base::changeState(next);
  if (next == CONNECTED || next == CONNECTING) connection_.on_change(next == CONNECTED);
  if (!ends) return;
  owner_.record_loss(rank_);
  const std::exception_ptr error =
      ex_ ? ex_ : std::make_exception_ptr(::gloo::IoException("this rank closed the connection"));
  receiving_.arrival().fail(error);
  sending_.fail(error);
}

void Pair::waitUntilConnected(std::unique_lock<std::mutex>& lock, bool) { connection_.wait_until_connected(lock); }

}  // namespace backplane::gloo
