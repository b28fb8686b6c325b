// SPDX-License-Identifier: Apache-2.0
//
// The memory that the ranks of one communicator share, and how they meet in it. It is a file without a name, which the
// others open through the process that made it: nothing is left when processes are killed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace backplane::nccl_double {

// What an ncclUniqueId holds.
struct Id {
  uint64_t magic;
  uint64_t token;  // also in the segment, should the process be another one by now
  int32_t pid;
  int32_t fd;
};

// One operation, as each rank tells it to the others.
struct Descriptor {
  uint64_t kind;
  uint64_t count;
  int32_t dtype;
  int32_t op;
  int32_t root;
  int32_t reserved;
  bool operator==(const Descriptor&) const = default;
};

constexpr uint64_t kSlot = UINT64_C(64) << 10;    // bytes that a rank shows the others at a time
constexpr uint64_t kParcel = UINT64_C(32) << 10;  // bytes of a message under way
constexpr int kMostRanks = 64;

// A message from one rank to another, piece by piece.
struct Pair {
  std::atomic<uint32_t> full;
  uint32_t size;   // of this piece
  uint64_t total;  // of the message
  std::byte data[kParcel];
};

class Segment {
 public:
  // Makes the memory of a communicator to come; the descriptor belongs to the caller.
  static bool make(Id* id);

  // Throws std::system_error.
  Segment(const Id& id, int rank, int size);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  bool complete() const;  // have all ranks come?
  // Waits until all ranks are here. False: `stop` was set meanwhile.
  bool meet(const std::atomic<bool>& stop);
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
