// SPDX-License-Identifier: Apache-2.0
//
// Buffers that lie in no segment, read where they are, in the other rank's process: process_vm_readv, which the field
// calls cross memory attach (CMA). Whether it is permitted is asked of the kernel for each rank, when there is first
// something to read; whether it is faster than staging, a Trial finds out.
//
// The process of a rank is the one that the kernel names: each rank holds a lock on a byte of the segment's file, and
// the others ask whose it is, in the process ids of their own namespace. Each read takes a random word of that process
// along, so that nothing is believed that comes from a process to which its id was given later, or from another program
// in it. What else a rank says is only an address in its own process.
//
// The sender never writes to the receiver's process (process_vm_writev): it would win only at 4 MiB, and a sender that
// is stopped within that call could write hours later to memory that the receiver has freed.
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

enum class Cma { kAuto, kOn, kOff };  // by measuring; wherever it is permitted; not at all

// A place (pools.hpp) in the process of whoever names it, instead of in one of its pools: this and the address.
constexpr uint64_t kInProcess = UINT64_C(255) << 56;
inline bool is_in_process(uint64_t place) { return place >= kInProcess; }
inline uint64_t place_in_process(const std::byte* data) {
  const uint64_t address = reinterpret_cast<uintptr_t>(data);
  return address < UINT64_C(1) << 56 ? kInProcess | address : 0;
}
// In whose address space it means something, the place tells.
inline const std::byte* address_of(uint64_t place) { return std::bit_cast<const std::byte*>(place & ~kInProcess); }

class CrossMemory {
 public:
  // Lets others read this process, if the system does. `file` is the segment's; this process must close no descriptor
  // of it while this object lives, because that would end its lock. -1: all ranks are threads of this process.
  CrossMemory(const View& view, int32_t rank, int file, Cma use);

  // Can this rank read that one's process? Any thread.
  bool reaches(int32_t rank) noexcept;
  // `size` bytes from an address in that rank's process. False: not all of them could be read, or it is another
  // process by now. What is at `to` is undefined then. Any thread, to which `reaches` has said yes.
  bool read(int32_t rank, const std::byte* address, std::byte* to, uint64_t size) noexcept;

  // All others?
  bool reaches_all() noexcept;
  // Can others read these bytes of this process, as far as it can tell? Not memory of a device, for one. Asks the
  // kernel when they are others than the last time. One thread at a time.
  bool can_lend(const std::byte* data, uint64_t size) noexcept;

  Cma use() const { return use_; }
  // Why a rank cannot be read; empty if all can that were tried.
  std::string refusal() const;

 private:
  enum class Answer : int32_t { kUnknown, kYes, kNo };
  struct Other {
    std::atomic<Answer> answer = Answer::kUnknown;  // the last to be written of what was asked
    pid_t process = 0;
    uint64_t mark = 0;
    const std::byte* mark_address = nullptr;
  };

  void ask(Other& other, const Member& member, pid_t process) noexcept;
  enum class Outcome { kRead, kUnreadable, kRefused };  // nothing there, but elsewhere perhaps; nothing at all
  Outcome read_in(const Other& other, const std::byte* address, std::byte* to, uint64_t size) noexcept;

  const View view_;
  const int32_t rank_;
  const int file_;
  const Cma use_;
  const uint64_t mark_;  // by which others recognise this process
  std::mutex asking_;
  std::vector<Other> others_;
  const std::byte* lent_ = nullptr;  // that could be, the last time
  uint64_t lent_size_ = 0;
  std::atomic<int> error_ = 0;  // errno of the last read that failed
};

// Which of two ways to move so many bytes is the faster one here: staging them or reading them where they are. For each
// power of two both are tried in turn, a few times in a row, since either finds the caches as the one before has left
// them; from then on the one counts whose best try took less time per byte. So bursts of other work mislead it only if
// they last through all tries of one way. It is over sooner if one way is far behind. What is larger than caches is
// tried less often, one at a time. Not thread-safe.
//
// In a crowd, with more ranks than processors, what one rank does takes the time of others, now or later, and staging
// is slower once it uses again the places that others have read: then each way has one long row, and what counts is the
// median of its second half.
class Trial {
 public:
  static constexpr uint32_t kTries = 12;  // of each way
  static constexpr uint32_t kInARow = 3;
  static constexpr uint64_t kLarge = UINT64_C(16) << 20;  // bytes; from here on so many, one at a time:
  static constexpr uint32_t kLargeTries = 3;
  static constexpr uint32_t kTrusted = 1000;
  static constexpr double kFarBehind = 2;  // times as long

  explicit Trial(Cma use = Cma::kAuto, bool is_crowd = false) : use_(use), is_crowd_(is_crowd) {}
  // Shall the next ones be read?
  bool reads(uint64_t size) const;
  // Does it want to know how long they take?
  bool is_open(uint64_t size) const { return use_ == Cma::kAuto && at(size).tries < tries(size); }
  // They have taken so long, or 0 if that tells nothing here; counts only if it is that way's turn. True: it is not
  // open any more, until it is told by settle() what all have found, or this rank alone.
  bool took(uint64_t size, bool were_read, int64_t ns);
  // True: that decides, for the first time or otherwise than before. Else it was decided so before, or it is open
  // again.
  using Best = std::array<double, 2>;  // ns per byte; of staging, of reading
  bool settle(uint64_t size, const Best& best);
  // They go the way that was decided. After kTrusted of these both ways are tried anew: the host may have been busy.
  void trust(uint64_t size);

  const Best& best(uint64_t size) const { return at(size).best; }
  bool is_settled(uint64_t size) const { return use_ != Cma::kAuto || at(size).is_settled; }

  // What was decided, to be logged.
  std::string text(uint64_t size) const;

 private:
  struct Class {
    uint32_t tries = 0;
    uint32_t trusted = 0;
    bool is_close = false;        // after the first tries
    bool is_settled = false;      // for now
    std::optional<bool> decided;  // the last time: shall they be read?
    Best best = {};
    std::array<std::array<double, kTries / 4>, 2> shortest = {};  // of a long row, ascending; 0: none
  };
  struct Turn {
    bool reads;
    bool counts;
  };
  static size_t index(uint64_t size);
  static uint32_t in_a_row(uint64_t size) { return size < kLarge ? kInARow : 1; }
  // Of both ways together: at first, and if staging is not far behind then.
  uint32_t tries(uint64_t size) const {
    if (!at(size).is_close) return 2 * in_a_row(size);
    if (is_long(size)) return 2 * (kInARow + kTries);
    return 2 * (size < kLarge ? kTries : kLargeTries);
  }
  bool is_long(uint64_t size) const { return is_crowd_ && size < kLarge; }
  Turn turn(uint64_t size) const;
  const Class& at(uint64_t size) const { return classes_[index(size)]; }

  const Cma use_;
  const bool is_crowd_;
  std::array<Class, 64> classes_;
};

}  // namespace backplane::shm
