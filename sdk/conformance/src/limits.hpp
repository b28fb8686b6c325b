// SPDX-License-Identifier: Apache-2.0
//
// Simulates exhausted resources for the calling thread and the threads that it starts afterwards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace backplane::conformance {

// The soft limit of descriptors of this process while the object lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int highest);  // descriptors with this number or a greater one cannot be created
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  unsigned long before_ = 0;
};

// Makes ftruncate, fallocate and memfd_create fail with ENOSPC for the rest of the process. False, with the reason, if
// the machine does not permit it.
bool deny_shared_memory(std::string& why_not);

// Makes thread creation fail with EAGAIN above a number of threads. Made once in a process, before those threads; lasts
// until the process ends.
class ThreadLimit {
 public:
  // Null, and why, if the machine does not permit it.
  static ThreadLimit* install(std::string& why_not);
  // Permits `more` threads in addition to the current ones. Negative: any number.
  void allow(int more);

 private:
  explicit ThreadLimit(int listener) : listener_(listener) {}
  void answer();
  bool has_room() const;

  const int listener_;
  std::atomic<size_t> most_ = SIZE_MAX;
};

}  // namespace backplane::conformance
