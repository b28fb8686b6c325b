// SPDX-License-Identifier: Apache-2.0
#include "in_progress.hpp"

#include <chrono>
#include <cstddef>

namespace backplane::process_group {

void MessagesInProgress::begin(const MessageKey& key) {
  const std::lock_guard lock(mutex_);
  in_progress_.insert(key);
}

void MessagesInProgress::begin_refusable(const MessageKey& key) {
  const std::lock_guard lock(mutex_);
  refusable_.emplace(key.second, std::nullopt);
  in_progress_.insert(key);
}

void MessagesInProgress::end(const MessageKey& key) {
  const std::lock_guard lock(mutex_);
  in_progress_.erase(key);
  ended_.notify_all();
}

bool MessagesInProgress::is_first(const MessageKey& key, int64_t slice_ns) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::nanoseconds(slice_ns), [this, &key] {
    const auto first = in_progress_.lower_bound({key.first, 0});
    return is_aborted_ || (receipts_ended_ && key.first < 0) || first == in_progress_.end() || *first > key;
  });
}

bool MessagesInProgress::is_abandoned(const MessageKey& key) const {
  const std::lock_guard lock(mutex_);
  if (key.first >= 0) return !in_progress_.contains(key);
  const auto found = refusable_.find(key.second);
  return found != refusable_.end() && found->second;
}

bool MessagesInProgress::refuse(uint64_t number, const sdk::Failure& why) {
  const std::lock_guard lock(mutex_);
  const auto found = refusable_.find(number);
  if (found == refusable_.end()) return false;
  found->second.emplace(why);
  return true;
}

std::optional<sdk::Failure> MessagesInProgress::take_refusal(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = refusable_.find(number);
  if (found == refusable_.end()) return std::nullopt;
  const std::optional<sdk::Failure> refusal = found->second;
  refusable_.erase(found);
  return refusal;
}

bool MessagesInProgress::note_failed(uint64_t number) {
  constexpr size_t kMaxFailed = 4096;
  const std::lock_guard lock(mutex_);
  if (!failed_.insert(number).second) return false;
  if (failed_.size() > kMaxFailed) failed_.erase(failed_.begin());
  return true;
}

void MessagesInProgress::end_receipts() {
  const std::lock_guard lock(mutex_);
  receipts_ended_ = true;
  ended_.notify_all();
}

void MessagesInProgress::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  ended_.notify_all();
}

}  // namespace backplane::process_group
