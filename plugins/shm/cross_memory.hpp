// SPDX-License-Identifier: Apache-2.0
//
// Reads from the memory of another rank's process: process_vm_readv, known as cross memory attach (CMA). Used for
// buffers outside the segment, of the sizes for which one copy was measured to be faster than staging
// (share/doc/design.md, "Staging"). The kernel is asked once per rank whether it is permitted.
//
// Each rank holds a lock on one byte of the segment's file. The kernel gives the other ranks the owner's process id in
// their own pid namespace. Each read also fetches a random cookie of that process: data from another program, or from a
// process that got the same id later, are rejected. A peer chooses nothing but an address in its own process.
//
// The sender never writes to the receiver's process (process_vm_writev): that is faster only at 4 MiB, and a sender
// that is stopped within the call could write hours later to memory that the receiver has freed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <bit>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backplane/sdk/process_group.hpp"
#include "layout.hpp"

namespace backplane::shm {

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

enum class Cma { kAuto, kOn, kOff };  // option cma: where it is faster; wherever permitted; never
Cma cma_of(const sdk::Options& options);

// Sizes in bytes of ordinary buffers that are read in their process.
struct ReadLimits {
  uint64_t above = kEagerLimit;    // longer messages, and collectives with longer blocks
  uint64_t messages = UINT64_MAX;  // messages of at most this size

  bool block(uint64_t size) const { return size > above; }
  bool message(uint64_t size) const { return size > above && size <= messages; }
};
// nullopt: none is read. `spins`: whether waiting ranks spin, as they do not with more ranks than processors.
std::optional<ReadLimits> read_limits(Cma use, bool is_amd, bool spins);

class CrossMemory {
 public:
  // Permits other ranks to read this process, if the system allows it. `file` is the segment's; this process must not
  // close any descriptor of it while this object lives, which would release the lock. -1: all ranks are threads of this
  // process.
  CrossMemory(const View& view, int32_t rank, int file, const ReadLimits& limits);

  // Whether this rank can read the process of `rank`. Any thread.
  bool can_read(int32_t rank) noexcept;
  // Throws BP_PEER_LOST if it cannot, although it could before.
  void check_can_read(int32_t rank);
  // Reads `size` bytes. Returns false if they could not all be read, or if the process has been replaced; `to` is
  // undefined then. Any thread. Requires can_read(rank).
  bool read(int32_t rank, const std::byte* address, std::byte* to, uint64_t size) noexcept;

  // Whether all other ranks can be read.
  bool can_read_all() noexcept;
  // Whether other ranks can probably read these bytes of this process. Device memory, for example, cannot be read.
  // Asks the kernel if the buffer differs from the previous one. One thread at a time.
  bool can_expose(const std::byte* data, uint64_t size) noexcept;

  const ReadLimits& limits() const { return limits_; }
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
  enum class Outcome { kRead, kUnreadable, kRejected };  // kUnreadable: this buffer only; kRejected: the whole process
  Outcome read_in(const Other& other, const std::byte* address, std::byte* to, uint64_t size) noexcept;

  const View view_;
  const int32_t rank_;
  const int file_;
  const ReadLimits limits_;
  const uint64_t cookie_;  // identifies this process to the others
  std::mutex query_mutex_;
  std::vector<Other> others_;
  const std::byte* exposable_ = nullptr;  // the last buffer that could be read
  uint64_t exposable_size_ = 0;
  std::atomic<int> error_ = 0;  // errno of the last failed read
};

}  // namespace backplane::shm
