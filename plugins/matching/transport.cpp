// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <span>
#include <utility>

#include "backplane/base/grace.hpp"

namespace backplane::matching {
namespace {

constexpr uint64_t kFrame = sdk::Messenger::kHeadSize + sdk::Messenger::kPiece;  // bytes, at most
constexpr std::chrono::milliseconds kSentinelInterval{50};
constexpr std::chrono::microseconds kSpinLimit{200};

bool has_tags(const bp_backend& backend) { return (backend.flags & BP_BACKEND_TAGS) != 0; }

// The highest tag of the backend below BP_ANY_TAG. The core does not use it.
uint64_t frame_tag(const bp_backend& backend) {
  if (!has_tags(backend)) return 0;
  const bool all = backend.tag_bits == 0 || backend.tag_bits >= 64;
  return (all ? UINT64_MAX : (UINT64_C(1) << backend.tag_bits) - 1) - 1;
}

bp_op frame_op(uint32_t kind, int32_t peer, uint64_t tag) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = BP_U8;
  op.peer = peer;
  op.tag = tag;
  op.timeout_ns = BP_NO_TIMEOUT;
  return op;
}

}  // namespace

FrameTransport::FrameTransport(const sdk::Inner& inner, const bp_backend& backend, int32_t rank, int32_t world_size,
                               sdk::Messenger& messenger)
    : inner_(inner),
      rank_(rank),
      world_size_(world_size),
      tag_(frame_tag(backend)),
      takes_any_(has_tags(backend) && (backend.flags & BP_BACKEND_ANY_SOURCE) != 0),
      messenger_(messenger),
      spin_policy_(kSpinLimit) {
  if (takes_any_) receives_.emplace_back(BP_ANY_SOURCE, tag_, kFrame);
  for (int32_t peer = 0; peer < world_size && !takes_any_; ++peer) {
    if (peer != rank) receives_.emplace_back(peer, tag_, kFrame);
  }
}

void FrameTransport::start(std::function<void(const sdk::Failure&)> broken) {
  const std::lock_guard lock(mutex_);
  poller_.emplace([this](sdk::Poller::Sleep& sleep) { return progress(sleep); }, std::move(broken));
}

FrameTransport::~FrameTransport() {
  poller_.reset();
  std::vector<sdk::Work*> works;
  for (auto* receives : {&receives_, &sentinels_}) {
    for (Receive& receive : *receives) works.push_back(receive.work.get());
  }
  for (auto& [peer, sending] : sending_) works.push_back(sending.work.get());
  std::erase(works, nullptr);
  for (sdk::Work* const work : works) work->cancel();
  for (sdk::Work* const work : works) end(work);
}

// Waits for a cancelled work; aborts the group if the work does not end.
void FrameTransport::end(sdk::Work* work) {
  try {
    if (work->wait(is_aborted_ ? BP_NO_TIMEOUT : base::grace::kCancel)) return;
    is_aborted_ = true;
    inner_.abort(sdk::Failure(BP_CANCELLED, "the group is being destroyed"));
    work->wait(BP_NO_TIMEOUT);
  } catch (const sdk::Failure&) {  // the group has ended
  }
}

void FrameTransport::ready(int32_t peer) {
  const std::lock_guard lock(mutex_);
  ready_.insert(peer);
  if (poller_) poller_->wake();
}

void FrameTransport::watch(int32_t peer) {
  if (!takes_any_ || peer < 0 || peer == rank_) return;
  const std::lock_guard lock(mutex_);
  if (!watched_.insert(peer).second) return;
  to_watch_.push_back(peer);
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
  check_sentinels(now);
  if (busy) last_busy_ = now;
  if (busy || now - last_busy_ >= spin_policy_.limit() || !spin_policy_.pays(now)) return busy;
  spin_policy_.yield(now);  // a reply often follows soon
  return true;
}

bool FrameTransport::receive_all() {
  bool any = false;
  for (Receive& receive : receives_) any = poll_receive(receive) || any;
  return any;
}

bool FrameTransport::poll_receive(Receive& receive) {
  if (receive.ended) return false;
  try {
    if (!receive.posted) {
      bp_op op = frame_op(BP_RECV, receive.source, receive.tag);
      op.output = {receive.buffer.data(), receive.buffer.size(), BP_HOST, 0};
      op.result = &receive.result;
      receive.work = inner_.submit(op);
      receive.posted = true;
    }
    if (receive.work && !receive.work->wait(0)) {
      receive.has_failed = false;
      return false;
    }
  } catch (const sdk::Failure& failure) {
    receive.work.reset();
    receive.posted = false;
    // A receive from any source fails when a rank that was sending to it is lost. If the next one fails as well, no
    // peer is left.
    receive.ended = receive.source != BP_ANY_SOURCE || std::exchange(receive.has_failed, true);
    if (receive.ended) note_loss(receive.source, failure);
    return true;
  }
  receive.work.reset();
  receive.posted = receive.has_failed = false;
  const int32_t source = receive.result.source;
  watch(source);
  if (reported_.contains(source)) return true;
  try {
    messenger_.arrived(source, std::span(receive.buffer.data(), receive.result.bytes));
  } catch (const sdk::Failure& failure) {
    note_loss(source, failure);
  }
  return true;
}

// The peers with a frame to send or in flight.
std::set<int32_t> FrameTransport::peers_to_send_to() {
  std::set<int32_t> peers;
  {
    const std::lock_guard lock(mutex_);
    peers.swap(ready_);
    for (const int32_t peer : to_watch_) sentinels_.emplace_back(peer, tag_ - 1, 1);
    if (!to_watch_.empty()) next_check_ = {};
    to_watch_.clear();
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
    bp_op op = frame_op(BP_SEND, peer, tag_);
    op.input = {sending.frame.data(), sending.frame.size(), BP_HOST, 0};
    sending.work = inner_.submit(op);
    if (sending.work) return;
    sending_.erase(peer);
  }
}

void FrameTransport::check_sentinels(Clock::time_point time) {
  if (sentinels_.empty() || time < next_check_) return;
  next_check_ = time + kSentinelInterval;
  sentinels_.remove_if([this](Receive& sentinel) { return poll_receive(sentinel) && sentinel.ended; });
}

// BP_ANY_SOURCE: all peers.
void FrameTransport::note_loss(int32_t peer, const sdk::Failure& why) {
  if (peer != BP_ANY_SOURCE) {
    lost_.emplace(peer, why);
    return;
  }
  for (int32_t each = 0; each < world_size_; ++each) {
    if (each != rank_) lost_.emplace(each, why);
  }
}

void FrameTransport::report_losses() {
  for (const auto& [peer, why] : lost_) {
    if (reported_.insert(peer).second) messenger_.lost(peer, why);
  }
  lost_.clear();
}

}  // namespace backplane::matching
