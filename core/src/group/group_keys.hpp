// SPDX-License-Identifier: Apache-2.0
//
// The keys of a group in its job's store. They leave the store with the last rank: a rank that is still starting, or
// slow to learn why the group failed, finds them. Each rank holds one GroupKeys once all ranks have joined; without
// that, no rank knows which others may still start, and the keys stay until those of the job's first group leave.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "group/failure_detector.hpp"
#include "store/store.hpp"

namespace backplane::core {

class GroupKeys {
 public:
  // `global_ranks`: the group's ranks in the job of `detector`, which may be NULL.
  GroupKeys(std::shared_ptr<Store> store, int32_t rank, std::vector<int32_t> global_ranks,
            std::shared_ptr<FailureDetector> detector);
  // Leaves. Removes the keys if all other ranks have left or are lost. Blocks for at most 2 s.
  ~GroupKeys();
  GroupKeys(const GroupKeys&) = delete;
  GroupKeys& operator=(const GroupKeys&) = delete;

  const std::shared_ptr<Store>& store() const { return store_; }

 private:
  void leave();

  const std::shared_ptr<Store> store_;
  const int32_t rank_;
  const std::vector<int32_t> global_ranks_;
  std::shared_ptr<FailureDetector> detector_;
};

}  // namespace backplane::core
