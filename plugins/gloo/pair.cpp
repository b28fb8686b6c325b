// SPDX-License-Identifier: Apache-2.0
#include "pair.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>

namespace backplane::gloo {
namespace {

using ::gloo::transport::tcp::UnboundBuffer;

template <typename Entry>
bool is_for(const Entry& entry, const UnboundBuffer* buffer) {
  const BufferRef target(std::get<0>(entry));
  return target && target.get() == buffer;
}

// gloo opens its sockets without close-on-exec.
void close_on_exec(int fd) {
  if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

constexpr std::chrono::milliseconds kGloosOwnTimeout{0};  // none: deadlines are checked by this plugin

}  // namespace

Pair::Pair(Context& context, ::gloo::transport::tcp::Device* device, std::shared_ptr<const Health> health, int peer)
    : PairState(context, std::move(health)), ::gloo::transport::tcp::Pair(&context, device, peer, kGloosOwnTimeout) {
  close_on_exec(fd_);
}

// Closes before this is no longer a Pair, because gloo's thread may be inside a function of this class.
Pair::~Pair() {
  const std::lock_guard lock(m_);
  if (state_ == CLOSED) return;
  if (state_ != INITIALIZING && fd_ >= 0) ensure_registered();
  ::gloo::transport::tcp::Pair::changeState(CLOSED);
}

void Pair::handleEvents(int events) {
  // The thread that holds the lock may be waiting for this core. gloo would spin until the scheduler's next tick.
  if (!m_.try_lock()) return std::this_thread::yield();
  m_.unlock();
  try {
    ::gloo::transport::tcp::Pair::handleEvents(events);
  } catch (const std::exception& e) {                   // while connecting
    const std::unique_lock lock(m_, std::try_to_lock);  // the holder may be waiting for this thread
    if (lock && state_ != CLOSED) signalException(e.what());
  }
}

void Pair::send(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  ProgressScope::attach(*this);
  ::gloo::transport::tcp::Pair::send(buffer, slot, offset, bytes);
}

void Pair::recv(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) {
  ProgressScope::attach(*this);
  ::gloo::transport::tcp::Pair::recv(buffer, slot, offset, bytes);
}

// Ensures that the payload has a live buffer of sufficient size.
void Pair::prepare_payload() {
  if (rx_.ubuf) {
    if (!BufferRef(rx_.ubuf)) redirect_to_spill({}, false);
    return;
  }
  const auto pending = localPendingRecv_.find(rx_.preamble.slot);
  if (pending == localPendingRecv_.end()) return;  // gloo reports the error
  if (owner_.may_reorder()) put_oldest_first(rx_.preamble.slot, pending->second);
  const auto& [receiver, offset, room] = pending->second.front();
  const BufferRef buffer(receiver);
  const bool orphaned = buffer && is_orphan(buffer.get(), rx_.preamble.slot);
  if (buffer) buffer->begin_message(rx_.preamble.length, room, rank_);
  if (!buffer || orphaned || rx_.preamble.length > room) {
    const WeakBuffer told = receiver;
    pending->second.pop_front();
    if (pending->second.empty()) localPendingRecv_.erase(pending);
    redirect_to_spill(told, orphaned);
    return;
  }
  std::tie(rx_.ubuf, rx_.offset, rx_.nbytes) = pending->second.front();
  pending->second.pop_front();
  if (pending->second.empty()) localPendingRecv_.erase(pending);
}

// A receive from any source is behind those that named this peer before the message was announced, or not in this
// queue.
void Pair::put_oldest_first(uint64_t slot, std::deque<UnboundBufferOp>& receives) {
  const auto oldest = std::min_element(receives.begin(), receives.end(), [](const auto& left, const auto& right) {
    return age_of(std::get<0>(left)) < age_of(std::get<0>(right));
  });
  const UnboundBufferOp first = *oldest;
  receives.erase(oldest);
  receives.push_front(first);
  owner_.swap_with_any_source(slot, rank_, receives.front());
}

void Pair::redirect_to_spill(WeakBuffer receiver, bool orphaned) {
  const uint64_t length = rx_.preamble.length;
  auto spill = std::make_unique<Spill>();
  spill->slot = rx_.preamble.slot;
  spill->length = length;
  spill->orphaned = orphaned;
  spill->bytes.reset(new char[length]);
  spill->target = make_buffer(spill->bytes.get(), length);
  spill->receiver = std::move(receiver);
  rx_.ubuf = spill->target->weak();
  rx_.offset = 0;
  rx_.nbytes = length;
  spill_ = std::move(spill);
}

void Pair::finish_spill() {
  const std::unique_ptr<Spill> arrived = std::move(spill_);
  const BufferRef receiver(arrived->receiver);
  if (!receiver) return;
  if (arrived->orphaned) {
    keep_for_later(*arrived, *receiver.get());
  } else {
    receiver->handleRecvCompletion(rank_);
  }
}

void Pair::keep_for_later(Spill& arrived, Buffer& orphan) {
  // An adopted orphan belongs to a receive. Otherwise a receive from any source may be waiting.
  if (is_orphan(&orphan, arrived.slot) &&
      owner_.offer_to_any_source(arrived.slot, rank_, arrived.bytes.get(), arrived.length)) {
    // The caller still refers to the orphan, so it is kept until the next adoption.
    auto& queue = orphans_[arrived.slot];
    const auto found =
        std::find_if(queue.begin(), queue.end(), [&orphan](const auto& entry) { return entry.get() == &orphan; });
    used_orphans_.push_back(std::move(*found));
    queue.erase(found);
    if (queue.empty()) orphans_.erase(arrived.slot);
    return;
  }
  orphan.keep(std::move(arrived.bytes));
  orphan.handleRecvCompletion(rank_);
}

bool Pair::is_orphan(const UnboundBuffer* buffer, uint64_t slot) const {
  const auto queue = orphans_.find(slot);
  return queue != orphans_.end() && std::any_of(queue->second.begin(), queue->second.end(),
                                                [buffer](const auto& entry) { return entry.get() == buffer; });
}

std::unique_ptr<Buffer> Pair::make_buffer(void* data, size_t size) const {
  return std::make_unique<Buffer>(nullptr, health_, data, size, Buffer::Lengths::kUpToSize, Clock::time_point::max());
}

bool Pair::withdraw_receive(const Buffer& buffer, uint64_t slot) {
  const std::lock_guard lock(m_);
  const auto pending = localPendingRecv_.find(slot);
  if (state_ == CLOSED || pending == localPendingRecv_.end()) return false;
  auto& queue = pending->second;
  const auto found =
      std::find_if(queue.begin(), queue.end(), [&buffer](const auto& entry) { return is_for(entry, &buffer); });
  if (found == queue.end()) return false;
  queue.erase(found);
  // Behind the receives that still wait, which get the older messages.
  std::unique_ptr<Buffer> orphan = make_buffer(nullptr, 0);
  queue.emplace_back(orphan->weak(), 0, 0);
  orphans_[slot].push_back(std::move(orphan));
  return true;
}

Pair::Adopted Pair::adopt(Buffer& buffer, uint64_t slot) {
  const std::lock_guard lock(m_);
  used_orphans_.clear();
  const auto orphans = orphans_.find(slot);
  if (orphans == orphans_.end()) return {};
  std::unique_ptr<Buffer> orphan = std::move(orphans->second.front());
  orphans->second.pop_front();
  if (orphans->second.empty()) orphans_.erase(orphans);
  const auto pending = localPendingRecv_.find(slot);
  if (pending != localPendingRecv_.end()) {
    for (auto& entry : pending->second) {
      if (!is_for(entry, orphan.get())) continue;
      entry = std::make_tuple(buffer.weak(), size_t{0}, buffer.size);
      return {true, nullptr};
    }
  }
  return {false, std::move(orphan)};
}

bool Pair::has_filled_orphan(uint64_t slot) {
  const std::lock_guard lock(m_);
  const auto orphans = orphans_.find(slot);
  return orphans != orphans_.end() && orphans->second.front()->has_received();
}

std::unique_ptr<Buffer> Pair::take_filled_orphan(uint64_t slot) {
  const std::lock_guard lock(m_);
  const auto orphans = orphans_.find(slot);
  if (orphans == orphans_.end()) return nullptr;
  if (!orphans->second.front()->has_received()) return nullptr;
  std::unique_ptr<Buffer> orphan = std::move(orphans->second.front());
  orphans->second.pop_front();
  if (orphans->second.empty()) orphans_.erase(orphans);
  return orphan;
}

WeakBuffer Pair::detach(const Pending& buffer, size_t offset, size_t bytes) {
  Detached copy;
  copy.bytes.reset(new char[bytes]);
  if (bytes > 0) std::memcpy(copy.bytes.get(), static_cast<const char*>(buffer.ptr) + offset, bytes);
  copy.buffer = make_buffer(copy.bytes.get(), bytes);
  detached_.push_back(std::move(copy));
  return detached_.back().buffer->weak();
}

void Pair::detach_send(const Buffer& buffer, uint64_t slot) {
  const std::lock_guard lock(m_);
  if (state_ == CLOSED) return;
  detached_.remove_if([](const Detached& copy) { return copy.buffer->has_sent(); });
  const auto pending = localPendingSend_.find(slot);
  if (pending != localPendingSend_.end()) {
    for (auto& entry : pending->second) {
      if (!is_for(entry, &buffer)) continue;
      const auto [target, offset, bytes] = entry;
      entry = std::make_tuple(detach(buffer, offset, bytes), size_t{0}, bytes);
      return;
    }
  }
  for (Op& op : tx_) {
    if (const BufferRef target(op.ubuf); !target || target.get() != &buffer) continue;
    op.ubuf = detach(buffer, op.offset, op.nbytes);
    op.offset = 0;
  }
}

// Every end of a connection passes here, under the lock. gloo fails the operations that have not begun, this function
// fails the others.
void Pair::changeState(state next) noexcept {
  const bool ends = next == CLOSED && state_ != CLOSED;
  if (ends && state_ != INITIALIZING && fd_ >= 0) ensure_registered();
  ::gloo::transport::tcp::Pair::changeState(next);
  if (next == CONNECTED || next == CONNECTING) close_on_exec(fd_);
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

// Shutting down the reading side makes gloo's thread see the end of the connection, as if the peer had closed it.
void Pair::shut_down() noexcept {
  const std::lock_guard lock(m_);
  if (state_ == CONNECTED && fd_ >= 0) ::shutdown(fd_, SHUT_RD);
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
  cv_.wait_for(lock, 2 * kCheckInterval, [this] { return state_ == CLOSED; });
}

}  // namespace backplane::gloo
