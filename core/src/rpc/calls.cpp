// SPDX-License-Identifier: Apache-2.0
#include "rpc/calls.hpp"

namespace backplane::core::rpc {

Calls::~Calls() { stop(); }

void Calls::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
}

uint64_t Calls::add(Call call, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(*closed_);
  const uint64_t number = ++last_;
  call.begun = Deadline::Clock::now();
  if (!watch_.joinable()) watch_ = std::thread([this] { watch(); });
  calls_.emplace(number, Entry{std::move(call), deadline});
  wake_for(deadline);
  return number;
}

// A call that ends in time leaves its alarm behind, so calls that follow each other need none of their own: to wake the
// thread for each would take longer than a short call.
void Calls::wake_for(Deadline deadline) {
  if (deadline < alarm_) changed_.notify_all();
}

bool Calls::set_forks(uint64_t number, const std::vector<Passed>& forks) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end()) return false;
  found->second.call.forks = forks;
  return true;
}

std::optional<Call> Calls::take(uint64_t number) { return take(number, -1); }

std::optional<Call> Calls::take(uint64_t number, int32_t to) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end() || (to >= 0 && found->second.call.to != to)) return std::nullopt;
  std::optional<Call> call = std::move(found->second.call);
  calls_.erase(found);
  return call;
}

void Calls::doom(Entry* entry, const Error& why, Deadline deadline) {
  if (entry->call.failure && !(deadline < entry->deadline)) return;
  entry->call.failure.emplace(why);
  if (!(deadline < entry->deadline)) return;
  entry->deadline = deadline;
  wake_for(deadline);
}

void Calls::doom(uint64_t number, const Error& why, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found != calls_.end()) doom(&found->second, why, deadline);
}

void Calls::doom_all_to(int32_t to, const Error& why, Deadline deadline, uint64_t last) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, entry] : calls_) {
    if (entry.call.to == to && number <= last) doom(&entry, why, deadline);
  }
}

std::vector<uint64_t> Calls::close(const Error& why) {
  std::vector<uint64_t> left;
  const std::lock_guard lock(mutex_);
  if (!closed_) closed_.emplace(why);
  for (const auto& entry : calls_) left.push_back(entry.first);
  return left;
}

Calls::Counts Calls::counts() const {
  const std::lock_guard lock(mutex_);
  return {calls_.size(), last_};
}

std::vector<Calls::Pending> Calls::pending() const {
  std::vector<Pending> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, entry] : calls_) {
    all.push_back({number, entry.call.to, entry.call.kind, entry.call.function, entry.call.begun});
  }
  return all;
}

// Looks at all calls when the first one's time is up: that is seldom, and a call that ends in time costs nothing here.
void Calls::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto now = Deadline::Clock::now();
    std::vector<uint64_t> late;
    alarm_ = Deadline::never();
    for (auto& [number, entry] : calls_) {
      if (entry.deadline.infinite()) continue;
      if (entry.deadline.at() <= now) {
        late.push_back(number);
        entry.deadline = Deadline::never();  // once
      } else {
        alarm_ = std::min(alarm_, entry.deadline);
      }
    }
    if (!late.empty()) {
      lock.unlock();
      for (const uint64_t number : late) expired_(number);
      lock.lock();
    } else if (alarm_.infinite()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, alarm_.at());
    }
  }
}

}  // namespace backplane::core::rpc
