// SPDX-License-Identifier: Apache-2.0
#include "rpc/call_table.hpp"

#include <algorithm>
#include <functional>

namespace backplane::core::rpc {
namespace {

constexpr size_t kMaxStale = 1024;  // stale deadlines in the heap, beside two for each call
constexpr int kBatch = 256;         // calls that are visited before the lock is released

}  // namespace

CallTable::~CallTable() { stop(); }

void CallTable::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

uint64_t CallTable::add(Call call, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(*closed_);
  const uint64_t number = ++last_;
  call.begun = Deadline::Clock::now();
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  schedule(deadline, number);
  calls_.emplace_hint(calls_.end(), number, Entry{std::move(call), deadline});
  return number;
}

// A call that ends in time leaves its deadline in the heap and the alarm as it is: removing it, or waking the thread
// for each call, would take longer than a short call.
void CallTable::schedule(Deadline deadline, uint64_t number) {
  if (deadline.infinite()) return;
  if (due_.size() > 2 * calls_.size() + kMaxStale) {
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

bool CallTable::contains(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return calls_.contains(number);
}

bool CallTable::set_release_forks(uint64_t number, ReleaseForks release) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end()) return false;
  found->second.call.release_forks = std::move(release);
  return true;
}

ReleaseForks CallTable::take_release_forks(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  return found == calls_.end() ? nullptr : std::exchange(found->second.call.release_forks, nullptr);
}

std::optional<Call> CallTable::take(uint64_t number, int32_t to) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end() || (to != kAnyPeer && found->second.call.to != to)) return std::nullopt;
  for (const PeerFailure& each : failures_) apply(each, number, &found->second);
  std::optional<Call> call = std::move(found->second.call);
  calls_.erase(found);
  return call;
}

void CallTable::fail_at(uint64_t number, int32_t to, const Error& why, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end() || found->second.call.to != to) return;
  Entry& entry = found->second;
  const bool is_sooner = deadline < entry.deadline;
  if (entry.call.failure && !is_sooner) return;
  entry.call.failure.emplace(why);
  if (!is_sooner) return;
  entry.deadline = deadline;
  schedule(deadline, number);
}

void CallTable::fail_all_at(int32_t to, const Error& why, Deadline deadline, uint64_t last) {
  const std::lock_guard lock(mutex_);
  last = std::min(last, last_);
  const auto covers = [to, deadline, last](const PeerFailure& each) {
    return each.to == to && each.last >= last && !(deadline < each.at);
  };
  if (calls_.empty() || std::any_of(failures_.begin(), failures_.end(), covers)) return;
  failures_.push_back({to, last, why, deadline});
  if (deadline < alarm_) changed_.notify_all();
}

// Applies a peer's failure to one call, if it covers it.
void CallTable::apply(const PeerFailure& failure, uint64_t number, Entry* entry) {
  if (entry->call.to != failure.to || number > failure.last) return;
  if (entry->call.failure && !(failure.at < entry->deadline)) return;
  entry->call.failure.emplace(failure.why);
  entry->deadline = std::min(entry->deadline, failure.at);
}

std::vector<uint64_t> CallTable::close(const Error& why) {
  std::vector<uint64_t> left;
  const std::lock_guard lock(mutex_);
  if (!closed_) closed_.emplace(why);
  for (const auto& entry : calls_) left.push_back(entry.first);
  return left;
}

CallTable::Counts CallTable::counts() const {
  const std::lock_guard lock(mutex_);
  return {calls_.size(), last_};
}

std::vector<CallTable::Pending> CallTable::pending() const {
  std::vector<Pending> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, entry] : calls_) {
    all.push_back({number, entry.call.to, entry.call.kind, entry.call.function, entry.call.begun});
  }
  return all;
}

void CallTable::expire(uint64_t number, Entry* entry, std::vector<uint64_t>* late) {
  if (!std::exchange(entry->expired, true)) late->push_back(number);
}

// Visits the calls of the failures that are due. False if a batch is full and more are left.
bool CallTable::visit_failures(Deadline::Clock::time_point now, std::vector<uint64_t>* late) {
  for (auto failure = failures_.begin(); failure != failures_.end();) {
    if (failure->at.at() > now) {
      ++failure;
      continue;
    }
    auto call = calls_.lower_bound(failure->visited + 1);
    for (int i = 0; call != calls_.end() && call->first <= failure->last; ++i, ++call) {
      if (i == kBatch) return false;
      failure->visited = call->first;
      if (call->second.call.to != failure->to) continue;
      apply(*failure, call->first, &call->second);
      expire(call->first, &call->second, late);
    }
    failure = failures_.erase(failure);
  }
  return true;
}

// Removes due and stale entries from the heap, and sets the alarm. False if a batch is full and more are left.
bool CallTable::visit_heap(Deadline::Clock::time_point now, std::vector<uint64_t>* late) {
  for (int i = 0; i < kBatch; ++i) {
    if (due_.empty()) {
      alarm_ = Deadline::never();
      return true;
    }
    const auto [at, number] = due_.front();
    const auto found = calls_.find(number);
    const bool is_stale = found == calls_.end() || found->second.expired || found->second.deadline.at() != at;
    if (!is_stale && at > now) {
      alarm_ = found->second.deadline;
      return true;
    }
    if (!is_stale) expire(number, &found->second, late);
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
  }
  return false;
}

bool CallTable::visit(std::vector<uint64_t>* late) {
  const auto now = Deadline::Clock::now();
  if (!visit_failures(now, late) || !visit_heap(now, late)) return false;
  for (const PeerFailure& each : failures_) alarm_ = std::min(alarm_, each.at);
  return true;
}

void CallTable::run() {
  std::vector<uint64_t> late;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    late.clear();
    const bool is_complete = visit(&late);
    if (!late.empty() || !is_complete) {
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
