// SPDX-License-Identifier: Apache-2.0
//
// Counts the agents of a backend in this process, for backends whose library below lives as long as the process:
// bp_backend.finalize and BP_BACKEND_ONE_WORLD.
#pragma once

#include <cstdint>

#include "backplane/abi/plugin.h"

namespace backplane::core {

class LibraryUse {
 public:
  // Before an agent's init. `derived`: it is made from another agent of the process. Throws BP_INVALID if the backend
  // has one world per process and this would be another.
  LibraryUse(const bp_backend& backend, int32_t rank, int32_t world_size, bool derived);
  ~LibraryUse();  // after its destroy
  LibraryUse(const LibraryUse&) = delete;
  LibraryUse& operator=(const LibraryUse&) = delete;

  // Its init succeeded: the core's exit handler calls finalize once all agents are gone.
  void begin(int32_t rank, int32_t world_size);

 private:
  const bp_backend& backend_;
  const bool is_first_;  // a first group of a backend with one world
  bool begun_ = false;
};

}  // namespace backplane::core
