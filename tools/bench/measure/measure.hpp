// SPDX-License-Identifier: Apache-2.0
//
// How times are taken, the same for Backplane and for its peers.
//
// A sample is the mean time of a block: operations back to back, at least about 200 us of them, so that the clock and
// the ranks' different beginnings do not count. All ranks come together before a block, never inside it; a sample is
// the longest of the ranks' times. Where several targets are measured by the same processes their blocks take turns
// (A B C, C B A, ...), so that whatever disturbs the machine disturbs all of them alike; then each block begins with an
// operation that does not count, so that caches hold what its own target leaves there. A row ends after its time.
// Rooted operations change their root each time, so that none can begin before the last one has reached everybody.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "measure/task.hpp"

namespace backplane::bench {

// One operation on f32. all_reduce (sum) and broadcast are done in `in`, in place.
struct Step {
  Op op = Op::kBarrier;
  float* in = nullptr;
  float* out = nullptr;
  uint64_t count = 0;  // N
  int root = 0;
  int peer = 0;
  bool is_ours = false;  // what ranks agree about: in this program's memory, not in the target's
};

// What is measured: a process group of some library, as this rank sees it. Everything throws what is wrong.
class Target {
 public:
  virtual ~Target() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool offers(Test test) const = 0;
  // Memory in which it wants the buffers of a row, of so many bytes; asked only if it brings memory. Any will do for
  // the others.
  virtual bool brings_memory() const { return false; }
  virtual std::shared_ptr<void> allocate(uint64_t bytes);
  // May this program look into that memory? Into a device's it may not.
  virtual bool has_host_memory() const { return true; }
  // These are the buffers of the steps that follow, until it is called again: for libraries that bind operations to
  // them.
  virtual void prepare(const Row& row, float* in, uint64_t in_count, float* out, uint64_t out_count);
  // Does it.
  virtual void run(const Step& step) = 0;
  // Begins it; all that was begun is done after finish().
  virtual void start(const Step& step) = 0;
  virtual void finish() = 0;
};

// To be called by all ranks of all targets with the same task. Rank 0 appends each row's samples to task.results, and
// any rank appends wrong results, as lines:
//   samples SUBJECT TEST BYTES OPERATIONS WIDTH us us us ...
//   wrong SUBJECT TEST BYTES sentence
// SUBJECT is the index in `targets`. WIDTH is 1, and 3 for `overlap`: both together, the operation and the computing
// by themselves. `progress`, which may be empty, is called on rank 0 with the number of rows that are done.
void measure(const Task& task, const std::vector<Target*>& targets, const std::function<void(size_t)>& progress);

// One line that is written over and over on stderr, if that is a terminal and the task wants it.
std::function<void(size_t)> progress_line(const Task& task, const std::string& who);

}  // namespace backplane::bench
