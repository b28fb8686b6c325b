// SPDX-License-Identifier: Apache-2.0
//
// Detects changes of memory with a 64-bit multiplicative hash per chunk of 64 KiB. Not cryptographic.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace backplane::validate {

// Checksums of memory regions at one moment.
class Fingerprint {
 public:
  // Reads the regions. Without regions it never reports a change.
  explicit Fingerprint(std::vector<Region> regions);

  // Returns the first chunk that has changed. `may_be_freed` as in read_chunks.
  std::optional<Region> changed(bool may_be_freed) const;

 private:
  std::vector<Region> regions_;
  std::map<std::pair<uintptr_t, uintptr_t>, uint64_t> sums_;  // by begin and end of the chunk; blocks may overlap
};

}  // namespace backplane::validate
