// SPDX-License-Identifier: Apache-2.0
//
// Compares the descriptions of collectives between the ranks of a group (BACKPLANE_FINGERPRINT).
#pragma once

#include <cstdint>

#include "group/operation.hpp"

namespace backplane::core {

class Group;

class FingerprintCheck {
 public:
  // Reads BACKPLANE_FINGERPRINT; warns of an unknown value. Uses only the config of `group` during construction.
  explicit FingerprintCheck(Group& group);
  FingerprintCheck(const FingerprintCheck&) = delete;
  FingerprintCheck& operator=(const FingerprintCheck&) = delete;

  // Compares collectives through the store, and breaks the group if the ranks differ. Adds no cost to operations. To be
  // called once a second, on the reporter's thread.
  void compare_sampled();
  // Whether `check` compares the ranks before this operation.
  bool precedes(const bp_op& op) const { return checks_each_ && collective(op.kind); }
  // Throws BP_INVALID if the ranks differ.
  void check(const Operation& operation) const {
    if (precedes(operation.op)) compare_now(operation);
  }

 private:
  enum class Mode { kOff, kSampled, kAlways };
  static Mode mode_from_environment();
  void announce_next(uint64_t number);
  void compare(uint64_t number, uint64_t slot);
  void compare_now(const Operation& operation) const;

  Group& group_;
  const Mode mode_;
  const bool checks_each_;  // always, in a group of more than one rank
  // Numbers of collectives. Used by the reporter's thread.
  uint64_t last_seen_ = 0;  // the last at the previous call
  uint64_t compared_ = 0;   // the last that was compared
  uint64_t announced_ = 0;  // the next that all ranks compare; 0: not known yet
};

}  // namespace backplane::core
