// SPDX-License-Identifier: Apache-2.0
//
// The keys and values of a store. All functions may be called from any thread and throw core::Error. A deadline that
// has passed still asks once ("0 does not wait"); when a call that changes something ends in BP_TIMEOUT or
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
  // Adds to a counter kept as decimal text (a missing one counts as 0); returns the sum. BP_INVALID if the value that
  // stands there is not a decimal number.
  virtual int64_t add(std::string_view key, int64_t delta, Deadline deadline) = 0;
  // Waits until all keys exist. BP_TIMEOUT names the missing ones (the first few of them).
  virtual void wait(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // Do all keys exist now?
  virtual bool check(const std::vector<std::string>& keys, Deadline deadline) = 0;
  // Sets the key to `desired` if its value equals `expected` (an empty one also matches a missing key). Returns the
  // value that stands there afterwards (empty if the key is missing and did not match).
  virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  Deadline deadline) = 0;
  // Removes the key; was there one?
  virtual bool remove(std::string_view key, Deadline deadline) = 0;
  // How many keys there are, in the whole store also when asked through a prefix.
  virtual int64_t num_keys(Deadline deadline) = 0;
};

}  // namespace backplane::core
