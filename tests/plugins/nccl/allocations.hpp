// SPDX-License-Identifier: Apache-2.0
//
// Makes allocations of the plugin fail: those of one thread of the program, or those of the plugin's threads.
#pragma once

#include <cstdint>

namespace backplane::test {

// From now on this thread's allocations in the code of the plugin, which must be loaded, are counted. Allocation
// `number` (from 1) fails.
void fail_allocation(uint64_t number);
// Ends that. Returns how many there were.
uint64_t end_allocations();

// The same for the plugin's threads on device 0: all threads but those that hold one of these.
class ProgramThread {
 public:
  ProgramThread();
  ~ProgramThread();
  ProgramThread(const ProgramThread&) = delete;
  ProgramThread& operator=(const ProgramThread&) = delete;
};
// From allocation `number` on, `count` allocations fail.
void fail_thread_allocations(uint64_t number, uint64_t count);
uint64_t end_thread_allocations();

}  // namespace backplane::test
