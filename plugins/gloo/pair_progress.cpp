// SPDX-License-Identifier: Apache-2.0
#include "pair_progress.hpp"

#include <sys/socket.h>

#include <mutex>
#include <new>

namespace backplane::gloo {
namespace {

constexpr int kReadsAtOnce = 64;
constexpr const char* kNoMemory = "this rank has no memory for a message that arrives";

}  // namespace

int PairProgress::take() {
  const std::lock_guard lock(pair_.m_);
  if (pair_.state_ != GlooPair::CONNECTED) return -1;
  is_taken_ = true;
  link_.expect_events(Link::kNone);
  return pair_.fd_;
}

void PairProgress::give_back() {
  const std::lock_guard lock(pair_.m_);
  link_.set_ended(false);
  if (pair_.state_ == GlooPair::CONNECTED) {
    const bool written = sending_.write_queued();
    link_.expect_events(written ? Link::kIn : Link::kIn | Link::kOut);
  }
  is_taken_ = false;
}

bool PairProgress::flush() {
  const std::lock_guard lock(pair_.m_);
  return pair_.state_ != GlooPair::CONNECTED || sending_.write_queued();
}

PairProgress::Progress PairProgress::advance() {
  const std::lock_guard lock(pair_.m_);
  const size_t queued = pair_.tx_.size();
  const bool written = pair_.state_ == GlooPair::CONNECTED && sending_.write_queued();
  bool moved = pair_.tx_.size() < queued;
  try {
    // Bounded, because the driver has a deadline.
    for (int reads = 0; reads < kReadsAtOnce && !link_.has_ended() && pair_.read(); ++reads) moved = true;
  } catch (const std::bad_alloc&) {
    link_.end(kNoMemory);
    link_.set_ended(true);
  } catch (const std::exception&) {
    ::shutdown(pair_.fd_, SHUT_RDWR);  // wakes gloo's thread, which sees the same error
    link_.set_ended(true);
  }
  if (link_.has_ended() || pair_.state_ != GlooPair::CONNECTED) return Progress::kEnded;
  if (moved) return Progress::kMoved;
  return written ? Progress::kIdle : Progress::kBlocked;
}

// Exceptions end the connection here, under the lock: the pair may be destroyed once it is released.
void PairProgress::handle(int events) {
  const Link::OnLoop on_loop(link_);
  try {
    move(events);
  } catch (const std::bad_alloc&) {
    if (pair_.state_ != GlooPair::CLOSED) link_.close(kNoMemory);
  } catch (const std::exception& e) {
    if (pair_.state_ != GlooPair::CLOSED) link_.close(e.what());
  }
}

void PairProgress::move(int events) {
  if (is_taken_) {
    // Data that a thread without the driver role could not write at once.
    const bool written = sending_.write_queued();
    if (pair_.state_ == GlooPair::CLOSED) return;
    if (!written) {
      link_.expect_events(Link::kOut);
    } else if ((events & EPOLLOUT) != 0) {
      link_.expect_events(Link::kNone);
    }
    return;
  }
  if ((events & EPOLLOUT) != 0) {
    const bool written = sending_.write_queued();
    if (pair_.state_ == GlooPair::CLOSED) return;
    if (written) link_.expect_events(Link::kIn);
  }
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
    while (pair_.read()) {
    }
  }
}

}  // namespace backplane::gloo
