// SPDX-License-Identifier: Apache-2.0
//
// Reads from the memory of another rank's process: process_vm_readv, known as cross memory attach (CMA). Used for
// buffers outside the segment. The kernel is asked once per rank whether it is permitted; a CopyTuner measures whether
// it is faster than staging.
//
// Each rank holds a lock on one byte of the segment's file, and the kernel tells the others the owner's process id in
// their own pid namespace. Each read also fetches a random cookie of that process: data from another program, or from a
// process that got the same id later, are rejected. The only thing that a peer chooses is an address in its own
// process.
//
// The sender never writes to the receiver's process (process_vm_writev): that is faster only at 4 MiB, and a sender
// that is stopped within the call could write hours later to memory that the receiver has freed.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "layout.hpp"

namespace backplane::shm {

enum class Cma { kAuto, kOn, kOff };  // by measurement; wherever permitted; never

// A location (pools.hpp) that is an address in the process of the rank that published it.
constexpr uint64_t kInProcess = UINT64_C(255) << 56;
inline bool is_in_process(uint64_t location) { return location >= kInProcess; }
inline uint64_t location_in_process(const std::byte* data) {
  const uint64_t address = reinterpret_cast<uintptr_t>(data);
  return address < UINT64_C(1) << 56 ? kInProcess | address : 0;
}
// The address in the location, valid in that rank's process.
inline const std::byte* address_of(uint64_t location) {
  return std::bit_cast<const std::byte*>(location & ~kInProcess);
}

class CrossMemory {
 public:
  // Permits other ranks to read this process, if the system allows it. `file` is the segment's; this process must not
  // close any descriptor of it while this object lives, which would release the lock. -1: all ranks are threads of this
  // process.
  CrossMemory(const View& view, int32_t rank, int file, Cma use);

  // Whether this rank can read the process of `rank`. Any thread.
  bool can_read(int32_t rank) noexcept;
  // Reads `size` bytes. Returns false if they could not all be read, or if the process has been replaced; `to` is
  // undefined then. Any thread. Requires can_read(rank).
  bool read(int32_t rank, const std::byte* address, std::byte* to, uint64_t size) noexcept;

  // Whether all other ranks can be read.
  bool can_read_all() noexcept;
  // Whether others can read these bytes of this process, as far as it can tell; device memory cannot be read, for
  // example. Asks the kernel if the buffer differs from the previous one. One thread at a time.
  bool can_expose(const std::byte* data, uint64_t size) noexcept;

  Cma use() const { return use_; }
  // Why a rank cannot be read; empty if all that were tried can.
  std::string refusal() const;

 private:
  enum class Access : int32_t { kUnknown, kYes, kNo };
  struct Other {
    std::atomic<Access> access = Access::kUnknown;  // written last
    pid_t process = 0;
    uint64_t cookie = 0;
    const std::byte* cookie_address = nullptr;
  };

  void query(Other& other, const Member& member, pid_t process) noexcept;
  enum class Outcome { kRead, kUnreadable, kRejected };  // kUnreadable: this buffer only; kRefused: the whole process
  Outcome read_in(const Other& other, const std::byte* address, std::byte* to, uint64_t size) noexcept;

  const View view_;
  const int32_t rank_;
  const int file_;
  const Cma use_;
  const uint64_t cookie_;  // identifies this process to the others
  std::mutex query_mutex_;
  std::vector<Other> others_;
  const std::byte* exposable_ = nullptr;  // the last buffer that could be read
  uint64_t exposable_size_ = 0;
  std::atomic<int> error_ = 0;  // errno of the last failed read
};

// Selects the faster way to move data of a size: staging or reading from the other process. For each power of two both
// ways are tried alternately, a few times in a row each, because the state of the caches depends on the previous try.
// The way with the lowest time per byte is selected, so bursts of other load mislead it only if they last through all
// tries of one way. The trial ends early if one way is far slower. Sizes beyond the caches are tried less often. Not
// thread-safe.
//
// With more ranks than processors, work of one rank takes time from the others, and staging is slower once it reuses
// slots that others have read. Each way then has one long row of tries, and the median of its second half counts.
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
