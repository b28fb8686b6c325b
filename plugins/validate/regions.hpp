// SPDX-License-Identifier: Apache-2.0
//
// The host memory that operations in flight read and write.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/abi/op.h"
#include "memory.hpp"

namespace backplane::validate {

// The regions that an operation only reads, and those that it writes. Gaps between the blocks of v-variants are
// excluded. The root of a broadcast only reads.
struct Footprint {
  Footprint(const bp_op& op, int32_t world_size);
  std::vector<Region> reads;
  std::vector<Region> writes;
};

// The regions of all operations in flight. A region has any number of readers or one writer. Thread-safe.
class BusyRegions {
 public:
  // Acquires the regions for operation `name` with the unique number `id`. On a conflict returns a description of it,
  // and acquires the regions only if `force` is set. Returns an empty string if there is no conflict.
  std::string take(uint64_t id, const Footprint& footprint, const std::string& name, bool force);
  // Releases the regions of `id`. Idempotent.
  void release(uint64_t id);

 private:
  struct Use {
    uintptr_t end;
    bool writes;
    uint64_t id;
  };
  struct Owner {
    std::string name;
    std::vector<uintptr_t> begins;
  };

  const Use* conflict(const Region& region, bool writes) const;
  std::string conflict_text(const Region& region, bool writes) const;

  std::mutex mutex_;
  std::multimap<uintptr_t, Use> uses_;  // by their begin
  uintptr_t longest_ = 0;               // upper bound of the length of all regions in use: limits the search
  std::map<uint64_t, Owner> owners_;
};

}  // namespace backplane::validate
