// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <span>
#include <utility>

#include "backplane/base/grace.hpp"

namespace backplane::matching {
namespace {

constexpr uint64_t kFrame = sdk::Messenger::kHeadSize + sdk::Messenger::kPiece;  // bytes, at most
constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr std::chrono::microseconds kMoment{200};

bool has_tags(const bp_backend& backend) { return (backend.flags & BP_BACKEND_TAGS) != 0; }

// The highest tags that the backend can tell apart, but for that of BP_ANY_TAG: the core makes none of them.
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

Carrier::Carrier(const sdk::Inner& inner, const bp_backend& backend, int32_t rank, int32_t world_size,
                 sdk::Messenger& messenger)
    : inner_(inner),
      rank_(rank),
      world_size_(world_size),
      tag_(frame_tag(backend)),
      takes_any_(has_tags(backend) && (backend.flags & BP_BACKEND_ANY_SOURCE) != 0),
      messenger_(messenger),
      spin_policy_(kMoment) {
  if (takes_any_) inboxes_.emplace_back(BP_ANY_SOURCE, tag_, kFrame);
  for (int32_t peer = 0; peer < world_size && !takes_any_; ++peer) {
    if (peer != rank) inboxes_.emplace_back(peer, tag_, kFrame);
  }
}

void Carrier::start(std::function<void(const sdk::Failure&)> broken) {
  const std::lock_guard lock(mutex_);
  poller_.emplace([this](sdk::Poller::Sleep& sleep) { return progress(sleep); }, std::move(broken));
}

Carrier::~Carrier() {
  poller_.reset();
  std::vector<sdk::Work*> works;
  for (auto* inboxes : {&inboxes_, &lifelines_}) {
    for (Inbox& inbox : *inboxes) works.push_back(inbox.work.get());
  }
  for (auto& [peer, sending] : sending_) works.push_back(sending.work.get());
  std::erase(works, nullptr);
  for (sdk::Work* const work : works) work->cancel();
  for (sdk::Work* const work : works) end(work);
}

// One that was cancelled; if that has no effect, abort has.
void Carrier::end(sdk::Work* work) {
  try {
    if (work->wait(is_aborted_ ? BP_NO_TIMEOUT : base::grace::kCancel)) return;
    is_aborted_ = true;
    inner_.abort(sdk::Failure(BP_CANCELLED, "the group is being destroyed"));
    work->wait(BP_NO_TIMEOUT);
  } catch (const sdk::Failure&) {  // the group has ended
  }
}

void Carrier::ready(int32_t peer) {
  const std::lock_guard lock(mutex_);
  ready_.insert(peer);
  if (poller_) poller_->wake();
}

void Carrier::watch(int32_t peer) {
  if (!takes_any_ || peer < 0 || peer == rank_) return;
  const std::lock_guard lock(mutex_);
  if (!watched_.insert(peer).second) return;
  to_watch_.push_back(peer);
  poller_->wake();
}

bool Carrier::progress(sdk::Poller::Sleep& sleep) {
  if (messenger_.aborted()) {
    sleep.until_woken();
    return false;
  }
  bool busy = receive_all();
  if (!busy) tell_losses();
  for (const int32_t peer : take_notes()) busy = carry(peer) || busy;
  const Clock::time_point now = Clock::now();
  look_at_lifelines(now);
  if (busy) last_busy_ = now;
  if (busy || now - last_busy_ >= spin_policy_.limit() || !spin_policy_.pays(now)) return busy;
  spin_policy_.yield(now);  // an answer is often near
  return true;
}

bool Carrier::receive_all() {
  bool any = false;
  for (Inbox& inbox : inboxes_) any = receive(inbox) || any;
  return any;
}

bool Carrier::receive(Inbox& inbox) {
  if (inbox.over) return false;
  try {
    if (!inbox.posted) {
      bp_op op = frame_op(BP_RECV, inbox.source, inbox.tag);
      op.output = {inbox.buffer.data(), inbox.buffer.size(), BP_HOST, 0};
      op.result = &inbox.result;
      inbox.work = inner_.submit(op);
      inbox.posted = true;
    }
    if (inbox.work && !inbox.work->wait(0)) {
      inbox.has_failed = false;
      return false;
    }
  } catch (const sdk::Failure& failure) {
    inbox.work.reset();
    inbox.posted = false;
    // A receive from any source may fail with the rank that was sending to it. If it fails again, no peer is left.
    inbox.over = inbox.source != BP_ANY_SOURCE || std::exchange(inbox.has_failed, true);
    if (inbox.over) lose(inbox.source, failure);
    return true;
  }
  inbox.work.reset();
  inbox.posted = inbox.has_failed = false;
  const int32_t source = inbox.result.source;
  watch(source);
  if (told_.contains(source)) return true;
  try {
    messenger_.arrived(source, std::span(inbox.buffer.data(), inbox.result.bytes));
  } catch (const sdk::Failure& failure) {
    lose(source, failure);
  }
  return true;
}

// Who is to be sent something, or is being sent it.
std::set<int32_t> Carrier::take_notes() {
  std::set<int32_t> peers;
  {
    const std::lock_guard lock(mutex_);
    peers.swap(ready_);
    for (const int32_t peer : to_watch_) lifelines_.emplace_back(peer, tag_ - 1, 1);
    if (!to_watch_.empty()) next_look_ = {};
    to_watch_.clear();
  }
  for (const auto& [peer, sending] : sending_) peers.insert(peer);
  return peers;
}

bool Carrier::carry(int32_t peer) {
  try {
    const auto sending = sending_.find(peer);
    if (sending != sending_.end() && !sending->second.work->wait(0)) return false;
    sending_.erase(peer);
    send_frames(peer);
  } catch (const sdk::Failure& failure) {
    sending_.erase(peer);
    messenger_.not_carried(peer);
    if (failure.status() != BP_PEER_LOST) throw;  // a frame is missing: the group cannot go on
    watch(peer);                                  // what has come from it is received first
  }
  return true;
}

// All that the messenger has for this rank, until a send is not done at once.
void Carrier::send_frames(int32_t peer) {
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

void Carrier::look_at_lifelines(Clock::time_point time) {
  if (lifelines_.empty() || time < next_look_) return;
  next_look_ = time + kBetweenLooks;
  lifelines_.remove_if([this](Inbox& lifeline) { return receive(lifeline) && lifeline.over; });
}

// BP_ANY_SOURCE: all of them.
void Carrier::lose(int32_t peer, const sdk::Failure& why) {
  if (peer != BP_ANY_SOURCE) {
    lost_.emplace(peer, why);
    return;
  }
  for (int32_t each = 0; each < world_size_; ++each) {
    if (each != rank_) lost_.emplace(each, why);
  }
}

void Carrier::tell_losses() {
  for (const auto& [peer, why] : lost_) {
    if (told_.insert(peer).second) messenger_.lost(peer, why);
  }
  lost_.clear();
}

}  // namespace backplane::matching
