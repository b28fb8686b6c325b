// SPDX-License-Identifier: Apache-2.0
#include "rpc/calls.hpp"

#include <algorithm>
#include <functional>

namespace backplane::core::rpc {
namespace {

constexpr size_t kMostStale = 1024;  // deadlines of calls that have ended, beside as many as there are calls
constexpr int kMostAtOnce = 256;     // that are looked at before others get the lock

}  // namespace

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
  watch_for(deadline, number);
  calls_.emplace_hint(calls_.end(), number, Entry{std::move(call), deadline});
  return number;
}

// A call that ends in time leaves its alarm behind, so calls that follow each other need none of their own: to wake the
// thread for each would take longer than a short call. Nor is it looked for in the heap.
void Calls::watch_for(Deadline deadline, uint64_t number) {
  if (deadline.infinite()) return;
  if (due_.size() > 2 * calls_.size() + kMostStale) {
    due_.clear();
    for (const auto& [each, entry] : calls_) {
      if (!entry.deadline.infinite()) due_.emplace_back(entry.deadline.at(), each);
    }
    std::make_heap(due_.begin(), due_.end(), std::greater<>());
  }
  due_.emplace_back(deadline.at(), number);
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
  if (deadline < alarm_) changed_.notify_all();
}

bool Calls::set_forks(uint64_t number, const std::vector<Passed>& forks) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end()) return false;
  found->second.call.forks = forks;
  return true;
}

std::optional<Call> Calls::take(uint64_t number, int32_t to) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end() || (to != kAnybody && found->second.call.to != to)) return std::nullopt;
  for (const Doom& each : dooms_) apply(each, number, &found->second);
  std::optional<Call> call = std::move(found->second.call);
  calls_.erase(found);
  return call;
}

void Calls::doom(uint64_t number, Entry* entry, const Error& why, Deadline deadline) {
  if (entry->call.failure && !(deadline < entry->deadline)) return;
  entry->call.failure.emplace(why);
  if (!(deadline < entry->deadline)) return;
  entry->deadline = deadline;
  watch_for(deadline, number);
}

void Calls::doom(uint64_t number, int32_t to, const Error& why, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found != calls_.end() && found->second.call.to == to) doom(number, &found->second, why, deadline);
}

void Calls::doom_all_to(int32_t to, const Error& why, Deadline deadline, uint64_t last) {
  const std::lock_guard lock(mutex_);
  last = std::min(last, last_);
  const auto covers = [to, deadline, last](const Doom& each) {
    return each.to == to && each.last >= last && !(deadline < each.at);
  };
  if (calls_.empty() || std::any_of(dooms_.begin(), dooms_.end(), covers)) return;
  dooms_.push_back({to, last, why, deadline});
  if (deadline < alarm_) changed_.notify_all();
}

// What has been said of the calls to its worker holds for this one.
void Calls::apply(const Doom& doom, uint64_t number, Entry* entry) {
  if (entry->call.to != doom.to || number > doom.last) return;
  if (entry->call.failure && !(doom.at < entry->deadline)) return;
  entry->call.failure.emplace(doom.why);
  entry->deadline = std::min(entry->deadline, doom.at);
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

void Calls::expire(uint64_t number, Entry* entry, std::vector<uint64_t>* late) {
  if (!std::exchange(entry->expired, true)) late->push_back(number);
}

// Goes through the calls to those whose time is up. False if there is more to look at.
bool Calls::look_at_dooms(Deadline::Clock::time_point now, std::vector<uint64_t>* late) {
  for (auto doom = dooms_.begin(); doom != dooms_.end();) {
    if (doom->at.at() > now) {
      ++doom;
      continue;
    }
    auto call = calls_.lower_bound(doom->looked_at + 1);
    for (int i = 0; call != calls_.end() && call->first <= doom->last; ++i, ++call) {
      if (i == kMostAtOnce) return false;
      doom->looked_at = call->first;
      if (call->second.call.to != doom->to) continue;
      apply(*doom, call->first, &call->second);
      expire(call->first, &call->second, late);
    }
    doom = dooms_.erase(doom);
  }
  return true;
}

// Takes those whose time is up off the heap, and what is in it for nothing. False if there is more to look at.
bool Calls::look_at_heap(Deadline::Clock::time_point now, std::vector<uint64_t>* late) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    if (due_.empty()) {
      alarm_ = Deadline::never();
      return true;
    }
    const auto [at, number] = due_.front();
    const auto found = calls_.find(number);
    const bool stale = found == calls_.end() || found->second.expired || found->second.deadline.at() != at;
    if (!stale && at > now) {
      alarm_ = found->second.deadline;
      return true;
    }
    if (!stale) expire(number, &found->second, late);
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
  }
  return false;
}

bool Calls::look(std::vector<uint64_t>* late) {
  const auto now = Deadline::Clock::now();
  if (!look_at_dooms(now, late) || !look_at_heap(now, late)) return false;
  for (const Doom& each : dooms_) alarm_ = std::min(alarm_, each.at);
  return true;
}

void Calls::watch() {
  std::vector<uint64_t> late;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    late.clear();
    const bool all = look(&late);
    if (!late.empty() || !all) {
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
