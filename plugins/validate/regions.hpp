// SPDX-License-Identifier: Apache-2.0
//
// The memory that an operation reads and writes, and which of it is in use by operations in flight. Only host memory.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/abi/op.h"
#include "memory.hpp"

namespace backplane::validate {

// What an operation reads and does not write, and what it writes. The gaps between the blocks of v-variants are not in
// use. The root of a broadcast only reads.
struct Footprint {
  Footprint(const bp_op& op, int32_t world_size);
  std::vector<Region> reads;
  std::vector<Region> writes;
};

// The regions of operations in flight. Any number may read a region, or one may write it. Any thread.
class BusyRegions {
 public:
  // Takes the regions for an operation that `name` names, as number `id`, which is used once. If they are free, or
  // `insist`, they are taken; the answer is then empty, or says what was in the way.
  std::string take(uint64_t id, const Footprint& footprint, const std::string& name, bool insist);
  // Gives back what `id` took. Twice is fine.
  void release(uint64_t id);

 private:
  struct Use {
    uintptr_t end;
    bool writes;
    uint64_t id;
  };
  struct Taker {
    std::string name;
    std::vector<uintptr_t> begins;
  };

  const Use* conflict(const Region& region, bool writes) const;
  std::string conflict_text(const Region& region, bool writes) const;

  std::mutex mutex_;
  std::multimap<uintptr_t, Use> uses_;  // by their begin
  uintptr_t longest_ = 0;               // no region that was ever taken is longer: bounds the search
  std::map<uint64_t, Taker> takers_;
};

}  // namespace backplane::validate
