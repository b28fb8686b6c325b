// SPDX-License-Identifier: Apache-2.0
#include "group/any_source.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "backplane/base/signals.hpp"

namespace backplane::core {
namespace {

using namespace std::chrono_literals;

// Whether receives with these tags could take the same message.
bool share_tag(uint64_t a, uint64_t b) { return a == b || a == BP_ANY_TAG || b == BP_ANY_TAG; }
// User tags are below 2^32.
bool takes_tag(uint64_t wanted, uint64_t tag) { return wanted == tag || (wanted == BP_ANY_TAG && tag >> 32 == 0); }

bool share_peer(int32_t a, int32_t b) { return a == b || a == BP_ANY_SOURCE || b == BP_ANY_SOURCE; }

bp_error no_error() {
  bp_error err;
  bp_error_init(&err);
  return err;
}

}  // namespace

AnySource::~AnySource() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const Kept& each : kept_) each.part->probe()->drop(each.part->probe()->ctx, each.message);
}

bool AnySource::must_queue(const CompositePart& part, const bp_op& op) {
  if (!active_.load(std::memory_order_acquire) || &part == posted_) return false;
  const std::lock_guard lock(mutex_);
  const bool waits = std::any_of(receives_.begin(), receives_.end(), [&](const auto& each) {
    return each->work == nullptr && !each->ended && share_tag(each->op.tag, op.tag) &&
           share_peer(each->op.peer, op.peer);
  });
  return waits || std::any_of(kept_.begin(), kept_.end(), [&op](const Kept& each) {
           return each.result.source == op.peer && takes_tag(op.tag, each.result.tag);
         });
}

std::shared_ptr<AnySource::Receive> AnySource::submit(const bp_op& op, CompositePart* only, int32_t* status,
                                                      bp_error* err) {
  auto receive = std::make_shared<Receive>(op, only);
  bp_error_init(&receive->error);
  const std::lock_guard lock(mutex_);
  progress();
  receives_.push_back(receive);
  active_.store(true, std::memory_order_release);
  std::vector<Receive*> before;
  for (const auto& each : receives_) {
    if (each != receive && each->work == nullptr) before.push_back(each.get());
  }
  if (!take(*receive, before) && !receive->ended && only == nullptr) begin(*receive);
  progress();
  if (!receive->ended) {
    ensure_thread();
    changed_.notify_all();
    return receive;
  }
  *status = report(*receive, err);
  return nullptr;
}

// Posts it to the outermost agent.
void AnySource::begin(Receive& receive) {
  bp_op op = posted_->op_in_part(receive.op, &receive.result);
  op.flags = 0;
  bp_error err = no_error();
  const int32_t status = posted_->api().submit(posted_->self(), &op, &receive.posted, &err);
  if (status == BP_OK && receive.posted != nullptr) return;
  end_from(receive, *posted_, status, err);
}

// A posted receive has ended, or could not be submitted.
void AnySource::end_from(Receive& receive, const CompositePart& part, int32_t status, const bp_error& err) {
  if (status == BP_PEER_LOST && &part == posted_) {
    receive.posted_closed = true;
    part.error_in_group(status, err, &receive.error);
    return;
  }
  part.error_in_group(status, err, &receive.error);
  part.result_in_group(&receive.result);
  end(receive, status);
}

void AnySource::end(Receive& receive, int32_t status) {
  receive.error.status = status;
  receive.ended = true;
  const bool has_result = status == BP_OK || status == BP_INVALID;
  if (has_result && receive.op.result != nullptr) {
    receive.op.result->source = receive.result.source;
    receive.op.result->bytes = receive.result.bytes;
    receive.op.result->tag = receive.result.tag;
  }
  if (receive.notice != nullptr) std::exchange(receive.notice, nullptr)(receive.notice_to);
}

// Takes a kept message, or one of a probed agent, unless an earlier receive may need it.
bool AnySource::take(Receive& receive, const std::vector<Receive*>& before) {
  const bool is_behind = std::any_of(before.begin(), before.end(), [&receive](const Receive* each) {
    return share_tag(each->op.tag, receive.op.tag) && share_peer(each->op.peer, receive.op.peer);
  });
  if (is_behind) return false;
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&receive](const Kept& each) {
    return share_peer(receive.op.peer, each.result.source) && takes_tag(receive.op.tag, each.result.tag);
  });
  if (kept != kept_.end()) {
    receive.part = kept->part;
    receive.message = kept->message;
    receive.probed = kept->result;
    kept_.erase(kept);
  }
  for (CompositePart* part : probed_) {
    if (receive.message != nullptr) break;
    const bool has_closed = std::find(receive.closed.begin(), receive.closed.end(), part) != receive.closed.end();
    if (has_closed || (receive.only != nullptr && receive.only != part)) continue;
    bp_error err = no_error();
    const int32_t status =
        part->probe()->probe(part->probe()->ctx, part->rank_in_part(receive.op.peer), part->tag_in_part(receive.op.tag),
                             &receive.message, &receive.probed, &err);
    if (status == BP_OK) {
      receive.part = part;
      part->result_in_group(&receive.probed);
    } else if (status != BP_AGAIN) {
      receive.closed.push_back(part);
      part->error_in_group(status, err, &receive.error);
      receive.error.status = status;
      receive.message = nullptr;
    }
  }
  if (receive.message == nullptr) return false;
  if (receive.is_probe) return true;
  if (receive.posted != nullptr) {
    posted_->api().work_cancel(posted_->self(), receive.posted);
  } else {
    receive_probed(receive);
  }
  return true;
}

void AnySource::receive_probed(Receive& receive) {
  bp_op op = receive.part->op_in_part(receive.op, &receive.result);
  op.flags = 0;
  op.peer = receive.part->rank_in_part(receive.probed.source);
  op.message = std::exchange(receive.message, nullptr);
  bp_error err = no_error();
  const int32_t status = receive.part->api().submit(receive.part->self(), &op, &receive.work, &err);
  if (status != BP_OK || receive.work == nullptr) end_from(receive, *receive.part, status, err);
}

// Whether no message can come any more.
bool AnySource::closed(const Receive& receive) const {
  if (receive.only != nullptr) return !receive.closed.empty();
  return receive.posted_closed && receive.closed.size() == probed_.size();
}

// One look at a receive. Returns whether it no longer stands before later ones.
bool AnySource::advance(Receive& receive, const std::vector<Receive*>& before) {
  if (receive.work != nullptr) {
    bp_error err = no_error();
    const CompositePart& part = *receive.part;
    const int32_t status = part.api().work_test(part.self(), receive.work, &err);
    if (status == BP_AGAIN) return true;
    part.api().work_release(part.self(), std::exchange(receive.work, nullptr));
    end_from(receive, part, status, err);
    return true;
  }
  if (receive.posted != nullptr) {
    bp_error err = no_error();
    const int32_t status = posted_->api().work_test(posted_->self(), receive.posted, &err);
    if (status != BP_AGAIN) {
      posted_->api().work_release(posted_->self(), std::exchange(receive.posted, nullptr));
      const bool has_probed = receive.message != nullptr;
      if (has_probed && (status == BP_CANCELLED || status == BP_PEER_LOST)) {
        receive_probed(receive);
        return true;
      }
      if (has_probed) kept_.push_front({receive.part, std::exchange(receive.message, nullptr), receive.probed});
      end_from(receive, *posted_, status, err);
    }
  }
  if (receive.ended || end_aborted(receive)) return true;
  if (receive.message != nullptr) return false;
  if (receive.cancelled && receive.posted == nullptr) {
    bp_error_set(&receive.error, BP_CANCELLED, 0, -1, "cancelled");
    end(receive, BP_CANCELLED);
    return true;
  }
  if (!receive.cancelled && take(receive, before)) return receive.message == nullptr;
  if (!receive.ended && closed(receive)) end(receive, receive.error.status);
  return receive.ended;
}

void AnySource::progress() {
  std::vector<Receive*> before;
  bool ended = false;
  for (const auto& each : receives_) {
    if (!each->ended && !advance(*each, before)) before.push_back(each.get());
    ended = ended || each->ended;
  }
  if (!ended) return;
  receives_.remove_if([](const auto& each) { return each->ended; });
  active_.store(!receives_.empty() || !kept_.empty(), std::memory_order_release);
  changed_.notify_all();
}

int32_t AnySource::report(const Receive& receive, bp_error* err) const {
  const bp_error& own = receive.error;
  if (own.status != BP_OK) bp_error_set(err, own.status, own.native_code, own.peer_rank, own.text);
  return own.status;
}

int32_t AnySource::wait(Receive& receive, Deadline deadline, bp_error* err) {
  constexpr int kSpins = 100;
  std::unique_lock lock(mutex_);
  for (int i = 0;; ++i) {
    if (!receive.ended) progress();
    if (receive.ended) return report(receive, err);
    if (deadline.passed()) return BP_AGAIN;
    if (i < kSpins) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
      continue;
    }
    const auto soon = Deadline::Clock::now() + 100us;
    changed_.wait_until(lock, std::min(soon, deadline.at()));
  }
}

void AnySource::cancel(Receive& receive) {
  const std::lock_guard lock(mutex_);
  if (receive.ended) return;
  receive.cancelled = true;
  if (receive.work != nullptr) receive.part->api().work_cancel(receive.part->self(), receive.work);
  if (receive.posted != nullptr) posted_->api().work_cancel(posted_->self(), receive.posted);
  changed_.notify_all();
}

void AnySource::abort(const bp_error& why) {
  if (abort_begun_.test_and_set()) return;
  cause_ = why;
  aborted_.store(true, std::memory_order_release);
  changed_.notify_all();
}

// Ends a receive that no agent has any more.
bool AnySource::end_aborted(Receive& receive) {
  if (!aborted_.load(std::memory_order_acquire) || receive.posted != nullptr || receive.work != nullptr) return false;
  if (receive.message != nullptr) {
    const bp_probe_api* const probe = receive.part->probe();
    probe->drop(probe->ctx, std::exchange(receive.message, nullptr));
  }
  receive.error = cause_;
  end(receive, cause_.status);
  return true;
}

void AnySource::on_end(Receive& receive, void (*ended)(void*), void* to) {
  const std::lock_guard lock(mutex_);
  if (receive.ended) return ended(to);
  receive.notice = ended;
  receive.notice_to = to;
}

int32_t AnySource::probe(int32_t peer, uint64_t tag, CompositePart** part, bp_message** message, bp_result* result,
                         bp_error* err) {
  bp_op op = {};
  op.kind = BP_RECV;
  op.peer = peer;
  op.tag = tag;
  const std::lock_guard lock(mutex_);
  progress();
  Receive taker(op, nullptr);
  bp_error_init(&taker.error);
  for (CompositePart* each : probed_) {
    if (peer >= 0 && each->contains(peer)) taker.only = each;
  }
  std::vector<Receive*> before;
  for (const auto& each : receives_) {
    if (each->work == nullptr) before.push_back(each.get());
  }
  taker.is_probe = true;
  const bool from_probed = peer < 0 || taker.only != nullptr;
  if (from_probed && take(taker, before)) {
    active_.store(!receives_.empty() || !kept_.empty(), std::memory_order_release);
    *part = taker.part;
    *message = taker.message;
    *result = taker.probed;
    return BP_OK;
  }
  if (taker.only != nullptr) return taker.closed.empty() ? BP_AGAIN : report(taker, err);
  bp_error own = no_error();
  const int32_t status =
      posted_->probe()->probe(posted_->probe()->ctx, peer, posted_->tag_in_part(tag), message, result, &own);
  if (status == BP_OK) {
    *part = posted_;
    posted_->result_in_group(result);
    return BP_OK;
  }
  if (status == BP_PEER_LOST && peer < 0 && taker.closed.size() < probed_.size()) return BP_AGAIN;
  return posted_->error_in_group(status, own, err);
}

void AnySource::ensure_thread() {
  if (thread_.joinable()) return;
  try {
    const base::SignalsBlocked blocked;
    thread_ = std::thread([this] { serve(); });
  } catch (const std::exception&) {
    // Without the thread, receives progress while the program waits for them.
  }
}

void AnySource::serve() {
  constexpr auto kLongest = 1000us;
  auto pause = 50us;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (receives_.empty()) {
      pause = 50us;
      changed_.wait(lock);
      continue;
    }
    try {
      progress();
    } catch (const std::bad_alloc&) {
      // Tried again after the pause.
    }
    changed_.wait_for(lock, pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, kLongest);
  }
}

}  // namespace backplane::core
