// SPDX-License-Identifier: Apache-2.0
//
// Transfers in progress, and the threads that wait for them.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "rpc.hpp"

namespace backplane::process_group {
namespace {

constexpr int64_t kSliceNs = 20'000'000;  // of one round over all transfers

}  // namespace

bool Agent::is_abandoned(const Transfer& transfer) const {
  return transfer.multipart && messages_.is_abandoned(*transfer.multipart);
}

void Agent::Transfer::set_deadline(int64_t timeout_ns, const char* text) {
  timeout_text = text;
  constexpr int64_t kFar = INT64_C(365) * 24 * 3600 * 1000000000;  // avoids overflow of the clock
  if (timeout_ns >= 0) deadline = Clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kFar));
}

void Agent::add(Transfer transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (!abort_cause_) {
      transfers_.push_back(std::move(transfer));
      changed_.notify_one();
      return;
    }
  }
  while (!drive(&transfer, kSliceNs)) {  // no thread waits any more, and abort has ended the works
  }
}

// The waiting threads take transfers in turn. After an abort all works end, and the queue becomes empty.
void Agent::wait() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return abort_cause_ || !transfers_.empty(); });
    if (transfers_.empty()) return;
    Transfer transfer = std::move(transfers_.front());
    transfers_.pop_front();
    // A round over all queued transfers takes one slice, so blocked ones delay the others only briefly.
    const int64_t slice_ns = kSliceNs / static_cast<int64_t>(1 + transfers_.size());
    lock.unlock();
    const bool over = drive(&transfer, slice_ns);
    if (over) transfer = {};  // without the lock: its release may run destructors of the program
    lock.lock();
    if (!over) transfers_.push_back(std::move(transfer));
  }
}

bool Agent::drive(Transfer* transfer, int64_t slice_ns) {
  const bool late = transfer->deadline && Clock::now() >= *transfer->deadline;
  if (late || is_abandoned(*transfer)) {
    for (const auto& work : transfer->works) work->cancel();
  }
  try {
    while (!transfer->works.empty()) {
      if (!transfer->works.back()->wait(slice_ns)) return false;
      transfer->works.pop_back();
    }
  } catch (const sdk::Failure& failure) {
    transfer->works.pop_back();
    for (const auto& work : transfer->works) work->cancel();
    // The first failure is reported once no work uses the buffers any more.
    const bool by_limit = late && failure.status() == BP_CANCELLED;  // any other status has another cause
    if (!transfer->failure && by_limit) transfer->failure.emplace(BP_TIMEOUT, transfer->timeout_text);
    if (!transfer->failure) transfer->failure.emplace(failure);
    if (!transfer->works.empty()) return false;
  }
  const bool over = late || transfer->failure || is_abandoned(*transfer);
  if (transfer->ordered && !over && !messages_.is_first(*transfer->ordered, slice_ns)) return false;
  finish(transfer);
  return true;
}

// A refusal by the receiver replaces the failure of the works that were cancelled because of it. Without a refusal the
// receiver must be told, because it waits for parts that will not arrive.
void Agent::finish(Transfer* transfer) {
  const auto refusal = messages_.take_refusal(transfer->number);
  if (refusal) transfer->failure.emplace(*refusal);
  if (transfer->number != 0 && transfer->failure && !refusal) withdraw(*transfer);
  if (!is_abandoned(*transfer)) transfer->ended(transfer->failure ? &*transfer->failure : nullptr);
  end_messages(*transfer);
}

void Agent::end_messages(const Transfer& transfer) {
  if (transfer.multipart) messages_.end(*transfer.multipart);
  if (transfer.ordered) messages_.end(*transfer.ordered);
}

}  // namespace backplane::process_group
