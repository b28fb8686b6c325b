// SPDX-License-Identifier: Apache-2.0
//
// Allocations that fail: those that a thread makes in code of the plugin, or those of the plugin's own threads.
#pragma once

#include <cstdint>

namespace backplane::test {

// From now on this thread's allocations in code of the plugin, which has been loaded, are counted; the one of this
// number (from 1) fails.
void fail_allocation(uint64_t number);
// No more. Returns how many there were.
uint64_t end_allocations();

// The same for the plugin's own threads on device 0: those beside the program's, which say so with one of these.
class ProgramThread {
 public:
  ProgramThread();
  ~ProgramThread();
  ProgramThread(const ProgramThread&) = delete;
  ProgramThread& operator=(const ProgramThread&) = delete;
};
// From this number on so many of their allocations fail.
void fail_allocations_behind(uint64_t number, uint64_t count);
uint64_t end_allocations_behind();

}  // namespace backplane::test
