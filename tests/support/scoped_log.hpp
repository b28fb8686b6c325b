// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "backplane/backplane.h"

namespace backplane::test {

// Collects the log during its lifetime.
class ScopedLog {
 public:
  ScopedLog() { bp_set_log(&take, this); }
  ~ScopedLog() { bp_set_log(nullptr, nullptr); }
  ScopedLog(const ScopedLog&) = delete;
  ScopedLog& operator=(const ScopedLog&) = delete;
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  static void take(void* self, uint32_t, const char* text) {
    auto& log = *static_cast<ScopedLog*>(self);
    const std::lock_guard lock(log.mutex_);
    log.text_ += std::string(text) + "\n";
  }
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace backplane::test
