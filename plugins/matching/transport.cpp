// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <span>
#include <utility>

#include "backplane/base/grace.hpp"

namespace backplane::matching {
namespace {

constexpr uint64_t kFrame = sdk::Messenger::kHeadSize + sdk::Messenger::kPiece;  // bytes, at most
constexpr std::chrono::microseconds kSpinLimit{200};

bool has_tags(const bp_backend& backend) { return (backend.flags & BP_BACKEND_TAGS) != 0; }

// The highest tag of the backend below BP_ANY_TAG. The core does not use it.
uint64_t frame_tag(const bp_backend& backend) {
  if (!has_tags(backend)) return 0;
  const bool all = backend.tag_bits == 0 || backend.tag_bits >= 64;
  return (all ? UINT64_MAX : (UINT64_C(1) << backend.tag_bits) - 1) - 1;
}

// Cancels works of the group and waits for them. Aborts the group if they do not end.
void end_all(const sdk::Inner& inner, const std::vector<sdk::Work*>& works) {
  for (sdk::Work* const work : works) work->cancel();
  int64_t timeout = base::grace::kCancel;
  for (sdk::Work* const work : works) {
    try {
      if (work->wait(timeout)) continue;
      timeout = BP_NO_TIMEOUT;
      inner.abort(sdk::Failure(BP_CANCELLED, "the group is being destroyed"));
      work->wait(timeout);
    } catch (const sdk::Failure&) {  // the group has ended
    }
  }
}

}  // namespace

FrameTransport::FrameTransport(const sdk::Inner& inner, const bp_backend& backend, int32_t rank, int32_t world_size,
                               sdk::Messenger& messenger)
    : inner_(inner),
      rank_(rank),
      tag_(frame_tag(backend)),
      takes_any_(has_tags(backend) && (backend.flags & BP_BACKEND_ANY_SOURCE) != 0),
      messenger_(messenger),
      losses_(inner_, rank, world_size, tag_ - 1),
      spin_policy_(kSpinLimit) {
  if (takes_any_) receives_.emplace_back(inner_, BP_ANY_SOURCE, tag_, kFrame);
  for (int32_t peer = 0; peer < world_size && !takes_any_; ++peer) {
    if (peer != rank) receives_.emplace_back(inner_, peer, tag_, kFrame);
  }
}

void FrameTransport::start(std::function<void(const sdk::Failure&)> broken) {
  const std::lock_guard lock(mutex_);
  poller_.emplace([this](sdk::Poller::Sleep& sleep) { return progress(sleep); }, std::move(broken));
}

FrameTransport::~FrameTransport() {
  poller_.reset();
  std::vector<sdk::Work*> works;
  for (const PersistentReceive& receive : receives_) works.push_back(receive.work());
  for (const auto& [peer, sending] : sending_) works.push_back(sending.work.get());
  losses_.add_works(works);
  std::erase(works, nullptr);
  end_all(inner_, works);
}

void FrameTransport::ready(int32_t peer) {
  const std::lock_guard lock(mutex_);
  ready_.insert(peer);
  if (poller_) poller_->wake();
}

void FrameTransport::watch(int32_t peer) {
  if (!takes_any_ || peer < 0 || peer == rank_ || !losses_.watch(peer)) return;
  const std::lock_guard lock(mutex_);
  poller_->wake();
}

bool FrameTransport::progress(sdk::Poller::Sleep& sleep) {
  if (messenger_.aborted()) {
    sleep.until_woken();
    return false;
  }
  bool busy = receive_all();
  if (!busy) report_losses();
  for (const int32_t peer : peers_to_send_to()) busy = send_to(peer) || busy;
  const Clock::time_point now = Clock::now();
  losses_.check(now);
  if (busy) last_busy_ = now;
  if (busy || now - last_busy_ >= spin_policy_.limit() || !spin_policy_.is_worthwhile(now)) return busy;
  spin_policy_.yield(now);  // a reply often follows soon
  return true;
}

bool FrameTransport::receive_all() {
  bool any = false;
  for (PersistentReceive& receive : receives_) any = poll(receive) || any;
  return any;
}

bool FrameTransport::poll(PersistentReceive& receive) {
  const PersistentReceive::Outcome outcome = receive.poll();
  if (outcome == PersistentReceive::Outcome::kPending) return false;
  if (outcome == PersistentReceive::Outcome::kEnded) losses_.note(receive.peer(), *receive.failure());
  if (outcome != PersistentReceive::Outcome::kMessage) return true;
  const int32_t sender = receive.sender();
  watch(sender);
  if (losses_.was_taken(sender)) return true;
  try {
    messenger_.arrived(sender, receive.message());
  } catch (const sdk::Failure& failure) {
    losses_.note(sender, failure);
  }
  return true;
}

// The peers with a frame to send or in flight.
std::set<int32_t> FrameTransport::peers_to_send_to() {
  std::set<int32_t> peers;
  {
    const std::lock_guard lock(mutex_);
    peers.swap(ready_);
  }
  for (const auto& [peer, sending] : sending_) peers.insert(peer);
  return peers;
}

bool FrameTransport::send_to(int32_t peer) {
  try {
    const auto sending = sending_.find(peer);
    if (sending != sending_.end() && !sending->second.work->wait(0)) return false;
    sending_.erase(peer);
    send_frames(peer);
  } catch (const sdk::Failure& failure) {
    sending_.erase(peer);
    messenger_.not_carried(peer);
    if (failure.status() != BP_PEER_LOST) throw;  // a frame is missing: the group cannot continue
    watch(peer);                                  // its last messages are received first
  }
  return true;
}

// Sends the messenger's frames for this rank until a send does not complete at once.
void FrameTransport::send_frames(int32_t peer) {
  sdk::Messenger::Bytes frame;
  while (messenger_.next(peer, frame)) {
    Sending& sending = sending_[peer];
    sending.frame = std::move(frame);
    bp_op op = byte_op(BP_SEND, peer, tag_);
    op.input = {sending.frame.data(), sending.frame.size(), BP_HOST, 0};
    sending.work = inner_.submit(op);
    if (sending.work) return;
    sending_.erase(peer);
  }
}

void FrameTransport::report_losses() {
  for (const auto& [peer, why] : losses_.take()) messenger_.lost(peer, why);
}

}  // namespace backplane::matching
