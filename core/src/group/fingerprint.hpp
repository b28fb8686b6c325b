// SPDX-License-Identifier: Apache-2.0
//
// Whether the ranks of a group are in the same collectives: BACKPLANE_FINGERPRINT.
#pragma once

#include <cstdint>

#include "group/agents.hpp"
#include "group/failures.hpp"
#include "group/recorder.hpp"

namespace backplane::core {

class FingerprintCheck {
 public:
  // Reads BACKPLANE_FINGERPRINT; warns of an unknown value. All must outlive this object.
  FingerprintCheck(const GroupConfig& config, GroupState& state, const Recorder& recorder, const Agents& agents,
                   Failures& failures);
  FingerprintCheck(const FingerprintCheck&) = delete;
  FingerprintCheck& operator=(const FingerprintCheck&) = delete;

  // Compares one collective of the last second through the store, and breaks the group if the ranks differ. Adds
  // nothing to the operations themselves. Reporter's thread.
  void compare_sampled();
  // Are the ranks to be compared before this operation begins?
  bool precedes(const bp_op& op) const {
    return mode_ == Mode::kAlways && config_.world_size > 1 && op.kind != BP_SEND && op.kind != BP_RECV;
  }
  // Compares them, if so. Throws BP_INVALID if they differ.
  void check(const Operation& operation) const {
    if (precedes(operation.op)) compare_now(operation);
  }

 private:
  enum class Mode { kOff, kSampled, kAlways };
  static Mode mode_from_environment();
  void compare_now(const Operation& operation) const;

  const GroupConfig& config_;
  GroupState& state_;
  const Recorder& recorder_;
  const Agents& agents_;
  Failures& failures_;
  const Mode mode_;
  // Both are used by the reporter's thread.
  uint64_t compared_ = 0;   // the collective that was compared last
  uint64_t last_seen_ = 0;  // collectives at the last call
};

}  // namespace backplane::core
