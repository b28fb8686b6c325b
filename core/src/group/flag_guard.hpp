// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace backplane::core {

// Sets a flag for its lifetime.
class FlagGuard {
 public:
  explicit FlagGuard(std::atomic<bool>& flag) : flag_(flag), is_owner_(!flag.exchange(true)) {}
  ~FlagGuard() {
    if (is_owner_) flag_ = false;
  }
  FlagGuard(const FlagGuard&) = delete;
  FlagGuard& operator=(const FlagGuard&) = delete;
  // False if the flag was set before.
  bool is_owner() const { return is_owner_; }

 private:
  std::atomic<bool>& flag_;
  const bool is_owner_;
};

}  // namespace backplane::core
