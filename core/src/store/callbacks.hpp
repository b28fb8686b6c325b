// SPDX-License-Identifier: Apache-2.0
//
// The functions of a program whose key-value space is a store (bp_store_callbacks): each call of one blocks and checks
// what it answers. The program's `release` is called by the destructor.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "backplane/backplane.h"
#include "handle.hpp"

// Where a callback puts a value. A handle, so that one that is used late is recognised.
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
  // Nothing if the key is not there.
  std::optional<std::string> get(const std::string& key, int64_t timeout_ns) const;
  int64_t add(const std::string& key, int64_t delta, int64_t timeout_ns) const;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                          int64_t timeout_ns) const;
  bool remove(const std::string& key, int64_t timeout_ns) const;
  int64_t num_keys(int64_t timeout_ns) const;

 private:
  int32_t call(const char* callback, const std::string& key, const std::function<int32_t(bp_error*)>& body,
               bool may_time_out = false) const;
  [[noreturn]] void fail_answer(const char* callback, const std::string& key, const std::string& what) const;

  const bp_store_callbacks table_;
  const std::string name_;
};

}  // namespace backplane::core
