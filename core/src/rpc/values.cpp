// SPDX-License-Identifier: Apache-2.0
#include "rpc/values.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "waiting.hpp"

namespace backplane::core::rpc {
namespace {

Error no_value() { return Error(BP_INVALID, "the referenced value no longer exists on its owner"); }

}  // namespace

void Values::fail_waiters(const std::vector<Waiting>& waiting, const Error& why) {
  for (const Waiting& each : waiting) each.ready(nullptr, &why);
}

bool Values::create(const Id& value, const Id& fork, int32_t holder, const std::string& function) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(*closed_);
  if (dropped_early_.remove(fork)) return false;
  const auto [entry, is_new] = values_.try_emplace(value);
  if (!is_new) fail(BP_INVALID, "a value with this id exists already");
  Owned& owned = entry->second;
  owned.function = function;
  owned.forks.emplace(fork, holder);
  return true;
}

Values::Owned& Values::find(const Id& value) {
  if (closed_) throw Error(*closed_);
  const auto found = values_.find(value);
  if (found == values_.end()) throw no_value();
  return found->second;
}

void Values::set(const Id& value, std::shared_ptr<Value> made) { settle(value, std::move(made), std::nullopt); }
void Values::set(const Id& value, const Error& failure) { settle(value, nullptr, failure); }

// NOLINTNEXTLINE(performance-unnecessary-value-param): a value without references is destroyed here, after the lock
void Values::settle(const Id& value, std::shared_ptr<Value> made, const std::optional<Error>& failure) {
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(value);
    if (found == values_.end()) return;  // its last reference was dropped
    found->second.value = made;
    found->second.failure = failure;
    waiting.swap(found->second.waiting);
    changed_.notify_all();
  }
  for (const Waiting& each : waiting) each.ready(made, failure ? &*failure : nullptr);
}

void Values::fork(const Id& value, const Id& fork, int32_t holder) {
  const std::lock_guard lock(mutex_);
  Owned& owned = find(value);
  if (!dropped_early_.remove(fork)) owned.forks.emplace(fork, holder);
}

void Values::take_out(Owned* owned, std::vector<std::shared_ptr<Value>>* gone, std::vector<Waiting>* waiting) {
  if (owned->value) gone->push_back(std::move(owned->value));
  std::move(owned->waiting.begin(), owned->waiting.end(), std::back_inserter(*waiting));
}

std::shared_ptr<Value> Values::drop(const Id& value, const Id& fork) {
  std::vector<std::shared_ptr<Value>> gone;
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
    const auto found = values_.find(value);
    if (found == values_.end() || found->second.forks.erase(fork) == 0) {
      dropped_early_.add(fork);
      return nullptr;
    }
    if (!found->second.forks.empty()) return nullptr;
    take_out(&found->second, &gone, &waiting);
    values_.erase(found);
    changed_.notify_all();
  }
  fail_waiters(waiting, no_value());
  return gone.empty() ? nullptr : gone.front();
}

std::vector<std::shared_ptr<Value>> Values::drop_all_of(int32_t holder) {
  std::vector<std::shared_ptr<Value>> gone;
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = values_.begin(); entry != values_.end();) {
      const auto next = std::next(entry);
      std::erase_if(entry->second.forks, [holder](const auto& fork) { return fork.second == holder; });
      std::erase_if(entry->second.waiting, [holder](const Waiting& each) { return each.asker == holder; });
      if (entry->second.forks.empty()) {
        take_out(&entry->second, &gone, &waiting);
        values_.erase(entry);
      }
      entry = next;
    }
    changed_.notify_all();
  }
  fail_waiters(waiting, no_value());
  return gone;
}

void Values::when_ready(const Id& value, Ready ready, int32_t asker, uint64_t call) {
  std::shared_ptr<Value> made;
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mutex_);
    Owned& owned = find(value);
    if (!owned.ready()) {
      owned.waiting.push_back({std::move(ready), asker, call});
      return;
    }
    made = owned.value;
    failure = owned.failure;
  }
  ready(made, failure ? &*failure : nullptr);
}

bool Values::stop_waiting(const Id& value, int32_t asker, uint64_t call) {
  std::vector<Waiting> waiting;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(value);
  if (found == values_.end()) return false;
  for (Waiting& each : found->second.waiting) {
    if (each.asker == asker && each.call == call) waiting.push_back({std::exchange(each.ready, nullptr), asker, call});
  }
  std::erase_if(found->second.waiting, [](const Waiting& each) { return !each.ready; });
  return !waiting.empty();
}

std::shared_ptr<Value> Values::wait(const Id& value, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto settled = [this, &value] {
    const auto found = values_.find(value);
    return closed_ || found == values_.end() || found->second.ready();
  };
  if (!wait_on(changed_, lock, deadline, settled)) {
    fail(BP_TIMEOUT, "the referenced value did not exist within the timeout");
  }
  const Owned& owned = find(value);
  if (owned.failure) throw Error(*owned.failure);
  return owned.value;
}

std::vector<Values::Claim> Values::claims() const {
  const std::lock_guard lock(mutex_);
  std::vector<Claim> claims;
  for (const auto& [id, owned] : values_) {
    Claim claim = {owned.function, id, {}};
    for (const auto& [fork, holder] : owned.forks) claim.holders.push_back(holder);
    claims.push_back(std::move(claim));
  }
  return claims;
}

size_t Values::size() const {
  const std::lock_guard lock(mutex_);
  return values_.size();
}

std::vector<std::shared_ptr<Value>> Values::close(const Error& why) {
  std::vector<std::shared_ptr<Value>> gone;
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_.emplace(why);
    for (auto& [id, owned] : values_) take_out(&owned, &gone, &waiting);
    values_.clear();
    changed_.notify_all();
  }
  fail_waiters(waiting, why);
  return gone;
}

}  // namespace backplane::core::rpc
