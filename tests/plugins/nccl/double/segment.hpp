// SPDX-License-Identifier: Apache-2.0
//
// The shared memory of a communicator, and a barrier in it. It is an anonymous file, which other ranks open through
// /proc of its creator, so that killed processes leave nothing behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace backplane::nccl_double {

// The content of an ncclUniqueId.
struct Id {
  uint64_t magic;
  uint64_t token;  // also in the segment, in case another process has the id of the creator
  int32_t pid;
  int32_t fd;
};

// The description of an operation that ranks compare.
struct Descriptor {
  uint64_t kind;
  uint64_t count;
  int32_t dtype;
  int32_t op;
  int32_t root;
  int32_t reserved;
  bool operator==(const Descriptor&) const = default;
};

constexpr uint64_t kSlot = UINT64_C(64) << 10;   // bytes that a rank publishes at a time
constexpr uint64_t kChunk = UINT64_C(32) << 10;  // bytes of a message in transit
constexpr int kMaxRanks = 64;

// Carries messages from one rank to another in chunks.
struct Pair {
  std::atomic<uint32_t> full;
  uint32_t size;   // of this chunk
  uint64_t total;  // of the message
  std::byte data[kChunk];
};

class Segment {
 public:
  // Creates the memory of a new communicator. The caller owns the descriptor.
  static bool make(Id* id);

  // Throws std::system_error.
  Segment(const Id& id, int rank, int size);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  bool complete() const;  // whether all ranks have attached
  // A barrier. False: `stop` was set meanwhile.
  bool barrier(const std::atomic<bool>& stop);
  Descriptor& descriptor(int rank);
  std::byte* slot(int rank);
  Pair& pair(int from, int to);

 private:
  struct Head;
  Head& head() const { return *static_cast<Head*>(memory_); }
  static uint64_t bytes(int size);

  const int size_;
  void* memory_ = nullptr;
};

}  // namespace backplane::nccl_double
