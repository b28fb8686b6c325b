// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

#include "support/eventually.hpp"

namespace backplane::test {

inline size_t entries_of(const char* directory) {
  const std::filesystem::directory_iterator begin(directory);
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

// The open descriptors and the threads of this process when it is made.
struct Resources {
  size_t descriptors = entries_of("/proc/self/fd");
  size_t threads = entries_of("/proc/self/task");

  // Whether there are no more than these, at the latest after kWaitLimit: a joined thread stays in /proc for a moment.
  bool are_restored() const {
    return eventually([this] {
      const Resources now;
      return now.descriptors <= descriptors && now.threads <= threads;
    });
  }
};

}  // namespace backplane::test
