// SPDX-License-Identifier: Apache-2.0
//
// The words that nobody waits for a call any more. They are not answered, and need not come in order: one that
// overtakes its call is kept for it, and one that may have been lost with a connection is sent again. Twice does no
// harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "rpc/recent.hpp"

namespace backplane::core::rpc {

class Cancels {
 public:
  // A word of `from` about a call that does not run here: it has ended, or is still on its way.
  void keep(int32_t from, uint64_t call) {
    const std::lock_guard lock(mutex_);
    early_.add({from, call});
  }
  // A call has come: has a word been kept for it? Forgets that.
  bool take(int32_t from, uint64_t call) {
    const std::lock_guard lock(mutex_);
    return early_.remove({from, call});
  }

  // `to` has been told of this call, or is about to be.
  void note(int32_t to, uint64_t call) {
    const std::lock_guard lock(mutex_);
    std::deque<uint64_t>& last = told_[to];
    last.push_back(call);
    if (last.size() > kMostTold) last.pop_front();
  }
  // Of which it has been told of late.
  std::vector<uint64_t> told(int32_t to) const {
    const std::lock_guard lock(mutex_);
    const auto found = told_.find(to);
    return found == told_.end() ? std::vector<uint64_t>()
                                : std::vector<uint64_t>(found->second.begin(), found->second.end());
  }

 private:
  static constexpr size_t kMostKept = 4096;
  static constexpr size_t kMostTold = 256;

  mutable std::mutex mutex_;
  Recent<std::pair<int32_t, uint64_t>, kMostKept> early_;
  std::map<int32_t, std::deque<uint64_t>> told_;
};

}  // namespace backplane::core::rpc
