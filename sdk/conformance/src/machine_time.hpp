// SPDX-License-Identifier: Apache-2.0
//
// What a busy machine adds to times. Bounds of the ABI are compared with a Stopwatch, limits that only end hangs grow
// with the load.
#pragma once

#include <sys/types.h>

#include <map>

#include "world.hpp"

namespace backplane::conformance {

// Measures the calls of this process, in the thread that makes it.
class Stopwatch {
 public:
  // The wall-clock time from the construction until `end`.
  Nanoseconds elapsed(Nanoseconds end = now()) const { return end - begin_; }
  // The same without the time for which threads of this process were ready to run and waited for a CPU. It is the wall
  // clock's where the kernel does not count that (/proc/self/task/*/schedstat).
  Nanoseconds took(Nanoseconds end = now()) const;

 private:
  using Waits = std::map<pid_t, Nanoseconds>;  // by thread
  static Waits waits();

  Waits before_ = waits();
  Nanoseconds begin_ = now();
};

// How many times as long as usual a process may need for its work: from 1 on an idle machine to 8, in proportion to
// the threads that run or want to run on each CPU.
double busy_factor();

}  // namespace backplane::conformance
