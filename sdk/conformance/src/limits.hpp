// SPDX-License-Identifier: Apache-2.0
//
// A machine that has run out of something, for the calling thread and the threads that it starts from then on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace backplane::conformance {

// The soft limit of descriptors of this process while the object lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int highest);  // no descriptor with this number or a greater one can be had
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  unsigned long before_ = 0;
};

// From now on, and for good, nothing grows in memory that is shared: ftruncate, fallocate and memfd_create answer
// ENOSPC. False, and why, if the machine does not permit it.
bool deny_shared_memory(std::string& why_not);

// Refuses threads (EAGAIN) once this process has so many. Made once in a process, before the
// threads in question; stays till the end of the process.
class ThreadLimit {
 public:
  // Null, and why, if the machine does not permit it.
  static ThreadLimit* install(std::string& why_not);
  // The process may have so many more threads than it has now; negative: any number.
  void allow(int more);

 private:
  explicit ThreadLimit(int listener) : listener_(listener) {}
  void answer();
  bool has_room() const;

  const int listener_;
  std::atomic<size_t> most_ = SIZE_MAX;
};

}  // namespace backplane::conformance
