// SPDX-License-Identifier: Apache-2.0
//
// The keys and values of a store. All functions may be called from any thread and throw core::Error. With a deadline
// that has passed, a function checks once and does not wait. If a function that changes a value ends with BP_TIMEOUT or
// BP_PEER_LOST, the change may or may not have been made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deadline.hpp"

namespace backplane::core {

class KeyValueSpace {
 public:
  virtual ~KeyValueSpace() = default;

  // Sets a value, replacing an earlier one.
  virtual void set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  // Waits until the key exists. BP_TIMEOUT names the key.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  // Adds to a counter, which is a decimal text, and returns the sum. A missing key counts as 0. BP_INVALID if the value
  // is not a decimal number.
  virtual int64_t add(std::string_view key, int64_t delta, Deadline deadline) = 0;
  // Waits until all keys exist. BP_TIMEOUT names the missing ones (the first few of them).
  virtual void wait(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // Whether all keys exist now.
  virtual bool check(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // Sets the key to `desired` if its value equals `expected`. An empty `expected` also matches a missing key. Returns
  // the resulting value, empty if the key is still missing.
  virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  Deadline deadline) = 0;
  // Removes the key. Returns whether it existed.
  virtual bool remove(std::string_view key, Deadline deadline) = 0;
  // The number of keys in the whole store, also if called on a prefix view.
  virtual int64_t num_keys(Deadline deadline) = 0;
};

}  // namespace backplane::core
