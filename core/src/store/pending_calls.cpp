// SPDX-License-Identifier: Apache-2.0
#include "store/pending_calls.hpp"

#include "waiting.hpp"

namespace backplane::core {

PendingCalls::Call::Call(PendingCalls& calls) : calls_(calls) {
  const std::lock_guard lock(calls_.mutex_);
  calls_.check_open();
  id_ = ++calls_.last_id_;
  calls_.calls_.emplace(id_, this);
}

PendingCalls::Call::~Call() {
  const std::lock_guard lock(calls_.mutex_);
  calls_.calls_.erase(id_);
}

bool PendingCalls::Call::wait(const Deadline& deadline, const Interruption& interruption) {
  std::unique_lock lock(calls_.mutex_);
  while (!done_) {
    calls_.check_open();
    interruption.check();
    if (deadline.passed()) return false;
    wait_on(changed_, lock, deadline);
  }
  return true;
}

void PendingCalls::check_open() const {
  if (lost_.empty()) return;
  fail(BP_PEER_LOST, "the store at {} {}; look at the output of the process that hosts it (rank 0 or the launcher)",
       where_, lost_);
}

void PendingCalls::complete(Reply reply) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(reply.id);
  if (found == calls_.end()) return;
  found->second->reply_ = std::move(reply);
  found->second->done_ = true;
  found->second->changed_.notify_one();
}

void PendingCalls::wake() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, call] : calls_) call->changed_.notify_one();
}

bool PendingCalls::fail_all(std::string why) {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) return false;
  lost_ = std::move(why);
  for (const auto& [id, call] : calls_) call->changed_.notify_one();
  return true;
}

}  // namespace backplane::core
