// SPDX-License-Identifier: Apache-2.0
//
// Selects the faster way to move data of a given size: staging, or reading from the other process. For each power of
// two both ways are tried in turn, a few times in a row each, because the state of the caches depends on the previous
// try. The way with the lowest time per byte is selected: other load misleads it only if it lasts through all tries of
// one way. The trial ends early if one way is far slower. Sizes beyond the caches are tried less often. Not
// thread-safe.
//
// With more ranks than processors, work of one rank takes time from the others, and staging is slower once it reuses
// slots that others have read. Each way then has one long row of tries, and the median of its second half counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace backplane::shm {

enum class Cma { kAuto, kOn, kOff };  // option cma: by measurement; wherever permitted; never

class CopyTuner {
 public:
  static constexpr uint32_t kTries = 12;  // per way
  static constexpr uint32_t kPerTurn = 3;
  static constexpr uint64_t kLarge = UINT64_C(16) << 20;  // bytes; from here on kLargeTries, one at a time
  static constexpr uint32_t kLargeTries = 3;
  static constexpr uint32_t kUsesUntilRetry = 1000;
  static constexpr double kFarBehind = 2;  // ratio of times

  explicit CopyTuner(Cma use = Cma::kAuto, bool oversubscribed = false) : use_(use), oversubscribed_(oversubscribed) {}
  // Whether the next message of this size should be read.
  bool reads(uint64_t size) const;
  // Whether it needs more measurements of this size.
  bool is_open(uint64_t size) const { return use_ == Cma::kAuto && at(size).tries < tries(size); }
  // Records a measurement; ns = 0 means that it is not meaningful. Ignored if it is the other way's turn. Returns true
  // once the trial is complete, until decide() is called with the results of all ranks, or of this one.
  bool record(uint64_t size, bool were_read, int64_t ns);
  // Decides by these times. Returns true if the decision is new or differs from the previous one; false if it is
  // unchanged or more tries are needed.
  using Best = std::array<double, 2>;  // ns per byte of staging and of reading
  bool decide(uint64_t size, const Best& best);
  // Counts a use of the decision. After kUsesUntilRetry uses both ways are tried again, since the host may have been
  // busy.
  void count_use(uint64_t size);

  const Best& best(uint64_t size) const { return at(size).best; }
  bool is_decided(uint64_t size) const { return use_ != Cma::kAuto || at(size).is_decided; }

  // The decision, for the log.
  std::string text(uint64_t size) const;

 private:
  struct Class {
    uint32_t tries = 0;
    uint32_t uses = 0;
    bool needs_full_trial = false;  // the first tries were inconclusive
    bool is_decided = false;        // for now
    std::optional<bool> decision;   // the last one: read?
    Best best = {};
    std::array<std::array<double, kTries / 4>, 2> shortest = {};  // of a long row, ascending; 0: none
  };
  struct Try {
    bool reads;
    bool counts;
  };
  static size_t index(uint64_t size);
  static uint32_t per_turn(uint64_t size) { return size < kLarge ? kPerTurn : 1; }
  // Of both ways: the first tries, or all if those were inconclusive.
  uint32_t tries(uint64_t size) const {
    if (!at(size).needs_full_trial) return 2 * per_turn(size);
    if (is_long(size)) return 2 * (kPerTurn + kTries);
    return 2 * (size < kLarge ? kTries : kLargeTries);
  }
  bool is_long(uint64_t size) const { return oversubscribed_ && size < kLarge; }
  Try next_try(uint64_t size) const;
  const Class& at(uint64_t size) const { return classes_[index(size)]; }

  const Cma use_;
  const bool oversubscribed_;
  std::array<Class, 64> classes_;
};

}  // namespace backplane::shm
