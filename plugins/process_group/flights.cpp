// SPDX-License-Identifier: Apache-2.0
//
// What is under way, and who waits for it.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "agent.hpp"

namespace backplane::process_group {
namespace {

constexpr int64_t kSliceNs = 20'000'000;  // how long all flights together are waited for

}  // namespace

// By the other side: refused by its receiver, or withdrawn by its sender.
bool Agent::is_given_up(const Flight& flight) const {
  if (!flight.arrives) return false;
  const std::lock_guard lock(mutex_);
  if (flight.number == 0) return !under_way_.contains(*flight.arrives);
  const auto found = in_parts_.find(flight.number);
  return found != in_parts_.end() && found->second;
}

// Has all ended that goes in parts and was sent before this, and this, if it waits for its receipt?
bool Agent::is_next(const Origin& word, int64_t slice_ns) {
  std::unique_lock lock(mutex_);
  return arrived_.wait_for(lock, std::chrono::nanoseconds(slice_ns), [this, &word] {
    const auto first = under_way_.lower_bound({word.first, 0});
    return ended_ || (deaf_ && word.first < 0) || first == under_way_.end() || *first > word;
  });
}

void Agent::Flight::set_limit(int64_t timeout_ns, const char* words) {
  late = words;
  constexpr int64_t kFar = INT64_C(365) * 24 * 3600 * 1000000000;  // avoids overflow of the clock
  if (timeout_ns >= 0) limit = Clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kFar));
}

void Agent::add(Flight flight) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      flights_.push_back(std::move(flight));
      changed_.notify_one();
      return;
    }
  }
  while (!drive(&flight, kSliceNs)) {  // nobody else waits any more, and abort has ended the works
  }
}

// The threads that wait take flights in turn. After abort all works end by themselves, and the queue empties.
void Agent::wait() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ended_ || !flights_.empty(); });
    if (flights_.empty()) return;
    Flight flight = std::move(flights_.front());
    flights_.pop_front();
    // All that queue get their turn within a slice, so that those that are stuck hold up nobody for long.
    const int64_t slice_ns = kSliceNs / static_cast<int64_t>(1 + flights_.size());
    lock.unlock();
    const bool over = drive(&flight, slice_ns);
    if (over) flight = {};  // without the lock: the message that it gives back may be the last word on something
    lock.lock();
    if (!over) flights_.push_back(std::move(flight));
  }
}

bool Agent::drive(Flight* flight, int64_t slice_ns) {
  const bool late = flight->limit && Clock::now() >= *flight->limit;
  if (late || is_given_up(*flight)) {
    for (const auto& work : flight->works) work->cancel();
  }
  try {
    while (!flight->works.empty()) {
      if (!flight->works.back()->wait(slice_ns)) return false;
      flight->works.pop_back();
    }
  } catch (const sdk::Failure& failure) {
    flight->works.pop_back();
    for (const auto& work : flight->works) work->cancel();
    // The first failure is told once nothing uses the buffers any more.
    const bool by_limit = late && failure.status() == BP_CANCELLED;  // not of another cause, as a death
    if (!flight->failure && by_limit) flight->failure.emplace(BP_TIMEOUT, flight->late);
    if (!flight->failure) flight->failure.emplace(failure);
    if (!flight->works.empty()) return false;
  }
  const bool over = late || flight->failure || is_given_up(*flight);
  if (flight->follows && !over && !is_next(*flight->follows, slice_ns)) return false;
  finish(flight);
  return true;
}

// A receiver's refusal says more than the failure of what was cancelled for it. One that has not refused waits for
// parts that will not come.
void Agent::finish(Flight* flight) {
  const auto refusal = forget(flight->number);
  if (refusal) flight->failure.emplace(*refusal);
  if (flight->number != 0 && flight->failure && !refusal) withdraw(*flight);
  if (!is_given_up(*flight)) flight->ended(flight->failure ? &*flight->failure : nullptr);
  land(*flight);
}

void Agent::land(const Flight& flight) {
  if (flight.arrives) end_way(*flight.arrives);
  if (flight.follows) end_way(*flight.follows);
}

void Agent::end_way(const Origin& message) {
  const std::lock_guard lock(mutex_);
  under_way_.erase(message);
  arrived_.notify_all();
}

std::optional<sdk::Failure> Agent::forget(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = in_parts_.find(number);
  if (found == in_parts_.end()) return std::nullopt;
  const std::optional<sdk::Failure> refusal = found->second;
  in_parts_.erase(found);
  return refusal;
}

}  // namespace backplane::process_group
