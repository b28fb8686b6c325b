// SPDX-License-Identifier: Apache-2.0
//
// The measuring method, the same for Backplane and for its peers.
//
// A sample is the mean time of a block: at least about 200 us of operations back to back, so that the resolution of the
// clock and different start times of the ranks do not matter. A barrier precedes each block. A sample is the maximum of
// the ranks' times. If the same processes measure several targets, their blocks alternate (A B C, C B A, ...), so that
// other load affects all alike; each block then begins with an operation that is not timed, to fill the caches. A row
// ends after its time. Rooted operations change their root each time, so that each needs the end of the previous one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "measure/task.hpp"

namespace backplane::bench {

// One operation on f32. all_reduce (sum) and broadcast are in place, in `in`.
struct Step {
  Op op = Op::kBarrier;
  float* in = nullptr;
  float* out = nullptr;
  uint64_t count = 0;  // N
  int root = 0;
  int peer = 0;
  bool is_control = false;  // an exchange of the measuring library, in its memory instead of the target's
};

// The measured process group of a library, on this rank. All functions throw on failure.
class Target {
 public:
  virtual ~Target() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool offers(Test test) const = 0;
  // Whether the target allocates the buffers of a row itself, with allocate().
  virtual bool allocates_buffers() const { return false; }
  virtual std::shared_ptr<void> allocate(uint64_t bytes);
  // Whether this program can access that memory; false for device memory.
  virtual bool has_host_memory() const { return true; }
  // Sets the buffers of the following steps, for libraries that bind operations to buffers.
  virtual void prepare(const Row& row, float* in, uint64_t in_count, float* out, uint64_t out_count);
  // Performs the operation. Blocks.
  virtual void run(const Step& step) = 0;
  // Starts the operation. finish() waits for all started ones.
  virtual void start(const Step& step) = 0;
  virtual void finish() = 0;
};

// Measures the task. All ranks call it with the same task. Rank 0 appends the samples of each row to task.results, and
// each rank its wrong results, as lines:
//   samples TARGET TEST BYTES OPERATIONS WIDTH us us us ...
//   wrong TARGET TEST BYTES text
// TARGET is the index in `targets`. WIDTH is 1, or 3 for `overlap`: operation and computation together, the operation
// alone, the computation alone. `progress` may be empty; it is called on rank 0 with the number of finished rows.
void measure(const Task& task, const std::vector<Target*>& targets, const std::function<void(size_t)>& progress);

// A function that updates a progress line on stderr; empty unless stderr is a terminal and the task requests it.
std::function<void(size_t)> progress_line(const Task& task, const std::string& name);

}  // namespace backplane::bench
