// SPDX-License-Identifier: Apache-2.0
//
// Counts the agents of a backend in this process, for backends over a library that lives as long as the process
// (bp_backend.finalize, BP_BACKEND_ONE_WORLD).
#pragma once

#include <cstdint>

#include "backplane/abi/plugin.h"

namespace backplane::core {

class LibraryUse {
 public:
  // Call before an agent's init. `derived`: the agent is made from another agent of the process, or from a group that
  // has one. BP_INVALID if the backend has one world per process and this would be a second one.
  LibraryUse(const bp_backend& backend, int32_t rank, int32_t world_size, bool derived);
  ~LibraryUse();  // after the agent's destroy
  LibraryUse(const LibraryUse&) = delete;
  LibraryUse& operator=(const LibraryUse&) = delete;

  // Call after the agent's init. At exit, finalize is called if all agents are destroyed.
  void begin(int32_t rank, int32_t world_size);

 private:
  const bp_backend& backend_;
  const bool is_first_;  // a first group of a backend with one world
  bool begun_ = false;
};

}  // namespace backplane::core
