// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <stdexcept>

namespace backplane::test {

// Lowers this process's limit on descriptors, until it is destroyed.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    if (getrlimit(RLIMIT_NOFILE, &before_) != 0) throw std::runtime_error("getrlimit");
    const rlimit little = {limit, before_.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &little) != 0) throw std::runtime_error("setrlimit");
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace backplane::test
