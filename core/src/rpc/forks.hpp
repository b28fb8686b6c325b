// SPDX-License-Identifier: Apache-2.0
//
// The forks (wire.hpp) on their way to this worker, and from it, whose messages may get lost: what was given up for
// lost and comes after all does not count, so that its owner can be told at once that nobody holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "rpc/recent.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class Forks {
 public:
  // A message has come with these, which this worker holds from now on. False if it was given up for lost.
  bool hold(const std::vector<Passed>& forks) {
    const std::lock_guard lock(mutex_);
    for (const Passed& each : forks) {
      if (lost_.contains(each.fork)) return false;
    }
    for (const Passed& each : forks) held_.insert(each.fork);
    return true;
  }
  void let_go(const Id& fork) {
    const std::lock_guard lock(mutex_);
    held_.erase(fork);
  }
  // A message with these was not answered. Returns those that are not held here; if they come, they do not count.
  std::vector<Passed> give_up(const std::vector<Passed>& forks) {
    std::vector<Passed> missing;
    const std::lock_guard lock(mutex_);
    for (const Passed& each : forks) {
      if (held_.contains(each.fork)) continue;
      lost_.add(each.fork);
      missing.push_back(each);
    }
    return missing;
  }

  // An answer with these goes to `to`; nobody says that it has arrived, so it is remembered for a while.
  void note_answer(int32_t to, uint64_t call, const std::vector<Passed>& forks) {
    if (forks.empty()) return;
    const std::lock_guard lock(mutex_);
    answers_[{to, call}] = forks;
    answer_order_.emplace_back(to, call);
    if (answer_order_.size() <= kMostAnswers) return;
    answers_.erase(answer_order_.front());
    answer_order_.pop_front();
  }
  // That answer has not arrived, or nobody wants it any more.
  std::vector<Passed> take_answer(int32_t to, uint64_t call) {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find({to, call});
    if (found == answers_.end()) return {};
    std::vector<Passed> forks = std::move(found->second);
    answers_.erase(found);
    return forks;
  }

 private:
  static constexpr size_t kMostLost = 1 << 16;
  static constexpr size_t kMostAnswers = 4096;

  std::mutex mutex_;
  std::set<Id> held_;
  Recent<Id, kMostLost> lost_;
  std::map<std::pair<int32_t, uint64_t>, std::vector<Passed>> answers_;
  std::deque<std::pair<int32_t, uint64_t>> answer_order_;
};

}  // namespace backplane::core::rpc
