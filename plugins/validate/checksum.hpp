// SPDX-License-Identifier: Apache-2.0
//
// Did memory change? Not made to resist anyone: a 64-bit multiplicative hash per chunk of 64 KiB.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace backplane::validate {

// The content of regions at one moment.
class Fingerprint {
 public:
  // Reads the regions. A null object, which never finds a change, is made of none.
  explicit Fingerprint(std::vector<Region> regions);

  // The first chunk that is no longer as it was. `careful` as in read_chunks.
  std::optional<Region> changed(bool careful) const;

 private:
  std::vector<Region> regions_;
  std::map<std::pair<uintptr_t, uintptr_t>, uint64_t> sums_;  // of each chunk, by its ends; blocks may overlap
};

}  // namespace backplane::validate
