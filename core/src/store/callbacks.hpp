// SPDX-License-Identifier: Apache-2.0
//
// The callbacks of a program's own store (bp_store_callbacks), with checks of their results. All functions block. The
// destructor calls the program's `release`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "backplane/backplane.h"
#include "handle.hpp"

// Receives the value of a callback. A handle, to detect late use.
struct bp_store_answer : backplane::core::Handle<bp_store_answer> {
  std::optional<std::string> value;
};

namespace backplane::core {

class Callbacks {
 public:
  explicit Callbacks(const bp_store_callbacks& table);
  ~Callbacks();
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  // For messages.
  const std::string& name() const { return name_; }

  void set(const std::string& key, const std::string& value, int64_t timeout_ns) const;
  // Nothing if the key is missing.
  std::optional<std::string> get(const std::string& key, int64_t timeout_ns) const;
  int64_t add(const std::string& key, int64_t delta, int64_t timeout_ns) const;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                          int64_t timeout_ns) const;
  bool remove(const std::string& key, int64_t timeout_ns) const;
  int64_t num_keys(int64_t timeout_ns) const;

 private:
  int32_t call(const char* callback, const std::string& key, const std::function<int32_t(bp_error*)>& body,
               bool may_time_out = false) const;
  [[noreturn]] void fail_result(const char* callback, const std::string& key, const std::string& what) const;

  const bp_store_callbacks table_;
  const std::string name_;
};

}  // namespace backplane::core
