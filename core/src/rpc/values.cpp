// SPDX-License-Identifier: Apache-2.0
#include "rpc/values.hpp"

#include <utility>

namespace backplane::core::rpc {

bool Values::create(const Id& value, const Id& fork, int32_t holder, const std::string& function) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(*closed_);
  if (dropped_early_.erase(fork) > 0) return false;
  Owned& owned = values_[value];
  owned.function = function;
  owned.forks.emplace(fork, holder);
  return true;
}

Values::Owned& Values::find(const Id& value) {
  if (closed_) throw Error(*closed_);
  const auto found = values_.find(value);
  if (found == values_.end()) fail(BP_INVALID, "the value that is referred to is gone from its owner");
  return found->second;
}

void Values::set(const Id& value, std::shared_ptr<Value> made) { settle(value, std::move(made), std::nullopt); }
void Values::set(const Id& value, const Error& failure) { settle(value, nullptr, failure); }

void Values::settle(const Id& value, std::shared_ptr<Value> made, const std::optional<Error>& failure) {
  std::vector<Ready> waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(value);
    if (found == values_.end()) return;  // nobody wants it any more; `made` goes without the lock
    found->second.value = made;
    found->second.failure = failure;
    waiting.swap(found->second.waiting);
    changed_.notify_all();
  }
  for (const Ready& ready : waiting) ready(made, failure ? &*failure : nullptr);
}

void Values::fork(const Id& value, const Id& fork, int32_t holder) {
  const std::lock_guard lock(mutex_);
  find(value).forks.emplace(fork, holder);
}

void Values::drop(const Id& value, const Id& fork) {
  Owned gone;  // its destructor is the program's code
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(value);
  if (found == values_.end()) {
    if (!closed_ && fork.number > 0) dropped_early_.insert(fork);
    return;
  }
  found->second.forks.erase(fork);
  if (!found->second.forks.empty()) return;
  gone = std::move(found->second);
  values_.erase(found);
}

void Values::drop_all_of(int32_t holder) {
  std::vector<Owned> gone;
  const std::lock_guard lock(mutex_);
  for (auto entry = values_.begin(); entry != values_.end();) {
    const auto next = std::next(entry);
    std::erase_if(entry->second.forks, [holder](const auto& fork) { return fork.second == holder; });
    if (entry->second.forks.empty()) {
      gone.push_back(std::move(entry->second));
      values_.erase(entry);
    }
    entry = next;
  }
}

void Values::when_ready(const Id& value, Ready ready) {
  std::shared_ptr<Value> made;
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mutex_);
    Owned& owned = find(value);
    if (!owned.ready()) {
      owned.waiting.push_back(std::move(ready));
      return;
    }
    made = owned.value;
    failure = owned.failure;
  }
  ready(made, failure ? &*failure : nullptr);
}

std::shared_ptr<Value> Values::wait(const Id& value, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto settled = [this, &value] {
    const auto found = values_.find(value);
    return closed_ || found == values_.end() || found->second.ready();
  };
  if (deadline.infinite()) changed_.wait(lock, settled);
  if (!deadline.infinite() && !changed_.wait_until(lock, deadline.at(), settled)) {
    fail(BP_TIMEOUT, "the value that is referred to has not been made in time");
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

void Values::close(const Error& why) {
  Table gone;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_.emplace(why);
    gone.swap(values_);
    dropped_early_.clear();
    changed_.notify_all();
  }
  for (const auto& [id, owned] : gone) {
    for (const Ready& ready : owned.waiting) ready(nullptr, &why);
  }
}

}  // namespace backplane::core::rpc
