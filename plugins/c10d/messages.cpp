// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace backplane::c10d {
namespace {

constexpr size_t kFirst = 1024;  // bytes: a small message takes one transfer
constexpr size_t kSizeBytes = sizeof(uint64_t);
constexpr uint64_t kGoodbye = UINT64_MAX;  // instead of a size
constexpr uint64_t kLargestFrame = sdk::Messenger::kPiece + sdk::Messenger::kHeadSize;

using First = std::array<std::byte, kFirst>;

First first_part(uint64_t size, const std::byte* frame) {
  First first = {};
  std::memcpy(first.data(), &size, kSizeBytes);
  if (frame != nullptr) std::memcpy(first.data() + kSizeBytes, frame, std::min<size_t>(size, kFirst - kSizeBytes));
  return first;
}

}  // namespace

Messages::Messages(std::shared_ptr<TorchGroup> torch, OnLost on_lost)
    : torch_(std::move(torch)),
      on_lost_(std::move(on_lost)),
      peers_(static_cast<size_t>(torch_->world_size)),
      messenger_(torch_->rank, torch_->world_size, [this](int32_t peer) {
        const std::lock_guard lock(mutex_);
        peers_[static_cast<size_t>(peer)].has_frame = true;
        changed_.notify_all();
      }) {}

void Messages::start() {
  for (int32_t peer = 0; peer < torch_->world_size; ++peer) {
    if (peer == torch_->rank) continue;
    for (const auto body : {&Messages::send_all, &Messages::receive_all}) {
      const std::lock_guard lock(mutex_);
      threads_.push_back(sdk::start_thread([self = shared_from_this(), peer, body] { self->run(peer, body); }));
      ++running_;
    }
  }
}

void Messages::run(int32_t peer, void (Messages::*body)(int32_t)) {
  try {
    (this->*body)(peer);
  } catch (const sdk::Failure& failure) {
    const std::string why = failure.what();
    lose(peer, sdk::peer_lost(peer, why.empty() ? "torch reported no reason" : why), false);
  }
  const std::lock_guard lock(mutex_);
  --running_;
  if (body == &Messages::send_all) peers_[static_cast<size_t>(peer)].has_left = true;
  changed_.notify_all();
}

void Messages::lose(int32_t peer, const sdk::Failure& why, bool in_order) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
  messenger_.lost(peer, why);
  on_lost_(why, in_order);
}

void Messages::send_frame(int32_t peer, const sdk::Messenger::Bytes& frame) {
  const First first = first_part(frame.size(), frame.data());
  torch_->send(peer, first.data(), first.size());
  const size_t sent = std::min(frame.size(), kFirst - kSizeBytes);
  if (sent < frame.size()) torch_->send(peer, frame.data() + sent, frame.size() - sent);
}

void Messages::send_all(int32_t peer) {
  Peer& own = peers_[static_cast<size_t>(peer)];
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this, &own] { return own.has_frame || leaving_ || stopped_; });
      if (stopped_) return;
      if (!own.has_frame && leaving_) break;
      own.has_frame = false;
    }
    sdk::Messenger::Bytes frame;
    try {
      while (messenger_.next(peer, frame)) send_frame(peer, frame);
    } catch (const sdk::Failure&) {
      messenger_.not_carried(peer);
      throw;
    }
  }
  const First goodbye = first_part(kGoodbye, nullptr);
  torch_->send(peer, goodbye.data(), goodbye.size());
}

void Messages::receive_all(int32_t peer) {
  First first = {};
  sdk::Messenger::Bytes frame;
  for (;;) {
    torch_->recv(peer, first.data(), first.size());
    uint64_t size = 0;
    std::memcpy(&size, first.data(), kSizeBytes);
    if (size == kGoodbye) return lose(peer, sdk::peer_left(peer), true);
    if (size > kLargestFrame) throw sdk::Failure(BP_PEER_LOST, "it sent a frame of impossible size", peer);
    frame.resize(size);
    const size_t received = std::min<size_t>(size, kFirst - kSizeBytes);
    std::memcpy(frame.data(), first.data() + kSizeBytes, received);
    if (received < size) torch_->recv(peer, frame.data() + received, size - received);
    messenger_.arrived(peer, frame);
  }
}

void Messages::leave(const base::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  changed_.notify_all();
  const auto all_left = [this] {
    return std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.has_left; }) <= 1;
  };
  changed_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()), all_left);
}

void Messages::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void Messages::join(const base::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const bool ended =
      changed_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()), [this] { return running_ == 0; });
  std::vector<std::thread> threads = std::exchange(threads_, {});
  lock.unlock();
  for (std::thread& thread : threads) ended ? thread.join() : thread.detach();
}

}  // namespace backplane::c10d
