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
  if (!deadline.infinite()) {
    times_.emplace(deadline.at(), number);
    wake_for(deadline.at());
  }
  calls_.emplace(number, Entry{std::move(call), deadline});
  return number;
}

// A call that ends in time leaves its alarm behind, so calls that follow each other need none of their own: to wake the
// thread for each would take longer than a short call.
void Calls::wake_for(Deadline::Clock::time_point time) {
  if (time < alarm_) changed_.notify_all();
}

bool Calls::set_forks(uint64_t number, const std::vector<Passed>& forks) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end()) return false;
  found->second.call.forks = forks;
  return true;
}

void Calls::remove(std::unordered_map<uint64_t, Entry>::iterator entry) {
  if (!entry->second.deadline.infinite()) times_.erase({entry->second.deadline.at(), entry->first});
  calls_.erase(entry);
}

std::optional<Call> Calls::take(uint64_t number) { return take(number, -1); }

std::optional<Call> Calls::take(uint64_t number, int32_t to) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end() || (to >= 0 && found->second.call.to != to)) return std::nullopt;
  std::optional<Call> call = std::move(found->second.call);
  remove(found);
  return call;
}

void Calls::doom(Entry* entry, uint64_t number, const Error& why, Deadline deadline) {
  if (entry->call.failure && !(deadline < entry->deadline)) return;
  entry->call.failure.emplace(why);
  if (!(deadline < entry->deadline)) return;
  if (!entry->deadline.infinite()) times_.erase({entry->deadline.at(), number});
  entry->deadline = deadline;
  times_.emplace(deadline.at(), number);
  wake_for(deadline.at());
}

void Calls::doom(uint64_t number, const Error& why, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found != calls_.end()) doom(&found->second, number, why, deadline);
}

void Calls::doom_all_to(int32_t to, const Error& why, Deadline deadline, uint64_t last) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, entry] : calls_) {
    if (entry.call.to == to && number <= last) doom(&entry, number, why, deadline);
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

void Calls::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    alarm_ = Deadline::Clock::time_point::max();
    if (times_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Time first = *times_.begin();
    if (first.first > Deadline::Clock::now()) {
      alarm_ = first.first;
      changed_.wait_until(lock, first.first);
      continue;
    }
    times_.erase(times_.begin());
    lock.unlock();
    expired_(first.second);
    lock.lock();
  }
}

}  // namespace backplane::core::rpc
