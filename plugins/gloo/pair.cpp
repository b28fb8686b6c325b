// SPDX-License-Identifier: Apache-2.0
#include "pair.hpp"

#include <thread>
#include <utility>

namespace backplane::gloo {
namespace {

constexpr std::chrono::milliseconds kGloosOwnTimeout{0};  // none: deadlines are checked by this plugin

}  // namespace

Pair::Pair(Context& context, ::gloo::transport::tcp::Device* device, std::shared_ptr<const Health> health, int peer)
    : GlooPair(&context, device, peer, kGloosOwnTimeout),
      owner_(context),
      link_(*this),
      sending_(*this, link_, health),
      receiving_(*this, context, link_, health),
      progress_(*this, context, link_, sending_),
      connection_(*this, context, link_, sending_) {
  const std::lock_guard lock(m_);
  is_constructed_ = true;
  if (state_ == LISTENING) connection_.close_gloos_listener();
}

// Closes here, while the object is still a Pair, because gloo's thread may be inside a function of this class.
Pair::~Pair() {
  const std::lock_guard lock(m_);
  if (state_ == CLOSED) return;
  connection_.before_close();
  Base::changeState(CLOSED);
}

void Pair::send(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  connection_.open();
  ProgressScope::attach(*this);
  Base::send(buffer, slot, offset, bytes);
}

void Pair::recv(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  connection_.open();
  ProgressScope::attach(*this);
  Base::recv(buffer, slot, offset, bytes);
}

void Pair::handleEvents(int events) {
  const std::unique_lock lock(m_, std::try_to_lock);
  // The thread that holds the lock may be waiting for this core. gloo would spin until the scheduler's next tick.
  if (!lock) return std::this_thread::yield();
  if (!is_constructed_) return;
  if (state_ == CONNECTING) return connection_.advance();
  if (state_ == CONNECTED) progress_.handle(events);
  // Otherwise it is an event of a socket that is closed by now.
}

void Pair::accept(base::Descriptor socket) {
  const std::lock_guard lock(m_);
  connection_.accept(std::move(socket));
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

}  // namespace backplane::gloo
