// SPDX-License-Identifier: Apache-2.0
//
// The layout of the segment that the ranks of a group share. All offsets follow from the number of ranks; none is read
// from the segment. The memory begins as zeros.
//
//   Header | Member[n] | opened flags [receiver][sender] | Line[n][kSteps] | slot[n][kSteps] |
//   Channel[receiver][sender] | heap[n]
//
// Heaps (heap.hpp) are mapped one by one on demand. Every rank maps the rest, a View. The table of channels is large
// but sparse: pages of unused channels are never touched.
//
// Values that another rank can write are read once into a local variable and checked before use as a size.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "topology.hpp"

namespace backplane::shm {

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

constexpr uint64_t kMagic = UINT64_C(0x414d485350414c42);  // "BLAPSHMA"
constexpr size_t kPage = 4096;
constexpr int32_t kMaxRanks = 1024;
constexpr uint64_t kMaxHeapBytes = UINT64_C(1) << 43;  // bytes of address space of all heaps together

constexpr size_t kMaxOlderGroups = 8;  // older groups whose memory a group can use (pools.hpp)

// Collectives: each rank has kSteps lines and slots, used in turn.
constexpr uint32_t kSteps = 8;
constexpr size_t kSlotSize = size_t{64} << 10;  // bytes
constexpr size_t kLineData = 120;               // bytes stored in the line itself

// Messages: each ordered pair of ranks has a ring of heads and a ring of bytes.
constexpr uint32_t kHeads = 128;
constexpr size_t kHeadData = 48;                     // bytes of a message stored in its head
constexpr uint64_t kRingSize = UINT64_C(128) << 10;  // bytes
constexpr uint64_t kEagerLimit = UINT64_C(8) << 10;  // bytes; longer messages are announced first
constexpr uint64_t kPiece = UINT64_C(16) << 10;      // bytes of data per head; two must fit into the ring
constexpr uint64_t kWindow = UINT64_C(1) << 20;      // eager bytes per pair that no receive has taken
constexpr uint64_t kOverhead = 128;                  // counted for each eager message in addition to its data
constexpr uint64_t kMaxBatch = UINT64_C(1) << 20;    // bytes copied from one rank before others get their turn

using Token = std::array<unsigned char, 16>;

enum class StartSignal : uint32_t { kWait = 0, kStart = 1, kRetry = 2, kRejected = 3 };

struct Header {  // NOLINT(clang-analyzer-optin.performance.Padding): departures has a cache line of its own
  uint64_t magic;
  Token token;
  int32_t world_size;
  std::atomic<uint32_t> arrived;                 // ranks other than 0 that have mapped the segment; a futex for rank 0
  std::atomic<uint32_t> go;                      // StartSignal; a futex for the others
  alignas(64) std::atomic<uint32_t> departures;  // changes whenever a rank leaves, aborts or dies
};

// A futex on which threads of one rank sleep. A thread that causes an event rings it if there are sleepers.
struct Doorbell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;
};

enum class State : uint32_t { kAbsent = 0, kPresent = 1, kLeft = 2, kAborted = 3, kDead = 4 };

constexpr size_t kAbortTextSize = 640;

struct alignas(
    64) Member {  // NOLINT(clang-analyzer-optin.performance.Padding): doorbell and state have cache lines of their own
  alignas(64) Doorbell doorbell;
  alignas(64) std::atomic<uint32_t> state;  // State
  int32_t pid;
  uint64_t start_time;     // of the process, in ticks since boot
  uint64_t pid_namespace;  // inode; process ids are comparable between ranks with the same one
  Processors cpus;         // on which the rank may run
  Locality locality;
  std::atomic<uint32_t> collective_failed;  // 1: a collective has failed, so exposed buffers of this rank are invalid
  std::atomic<uint32_t> cpu;                // 1 + the processor of its last long wait
  uint32_t has_membarrier;                  // 1: registered for membarrier
  uint32_t can_map_heaps;                   // 1: its address space has room for all heaps
  std::array<uint64_t, kMaxOlderGroups> older_groups;  // ids of groups, or 0
  // Identifies the process to readers (cross_memory.hpp).
  uint64_t cookie;
  uint64_t cookie_address;
  // Written before state becomes kAborted.
  int32_t abort_status;
  int32_t abort_rank;
  std::array<char, kAbortTextSize> why;
};

// The data of one rank in one step of a collective. Flag and data share a cache line.
struct alignas(128) Line {
  std::atomic<uint32_t> step;
  uint32_t digest;  // of the operation, to detect mismatches
  std::array<std::byte, kLineData> data;
};
static_assert(sizeof(Line) == 128);

enum class Kind : uint8_t {
  kInline = 1,    // a whole message in the head
  kEager = 2,     // a whole message; its bytes in the ring
  kAnnounce = 3,  // a longer message waits at the sender: id, size
  kReady = 4,     // the reply: id; size 0: drop it, 1: send it
  kData = 5,      // a piece of it in the ring: id
  kWithdraw = 6   // the announcement is withdrawn: id
};

// The location of an announced message that the receiver may read in place.
struct Exposure {
  uint64_t location;  // in the sender's memory (pools.hpp, cross_memory.hpp); 0: not exposed
  uint32_t revoked;   // Channel::revoked at the time of the announcement
};

// Of an announced message and the heads that belong to it.
struct Control {
  uint64_t id;
  uint64_t size;
  Exposure exposure;  // kAnnounce
};

struct alignas(64) Head {
  std::atomic<uint32_t> sequence;  // 1 + the number of this head; written last
  uint32_t kind_and_length;        // Kind in the lowest byte, payload bytes above it
  uint64_t tag;
  union {
    std::array<std::byte, kHeadData> bytes;
    Control control;
  };
};
static_assert(sizeof(Head) == 64);

struct alignas(kPage) Channel {
  // Written by the receiver; count from 0.
  alignas(64) std::atomic<uint32_t> heads_read;
  std::atomic<uint64_t> bytes_read;
  std::atomic<uint64_t> taken;  // eager bytes received, including kOverhead per message
  // Set by the sender when there is no room, cleared by the receiver after making some.
  alignas(64) std::atomic<uint32_t> blocked;
  // Written by the sender: the number of revoked exposures, incremented before the program gets the buffer back.
  std::atomic<uint32_t> revoked;
  std::array<Head, kHeads> heads;
  alignas(64) std::array<std::byte, kRingSize> data;
};

class Layout {
 public:
  explicit Layout(int32_t world_size) : n_(static_cast<size_t>(world_size)) {}

  size_t members() const { return pages(sizeof(Header)); }
  size_t opened() const { return members() + n_ * sizeof(Member); }
  size_t lines() const { return pages(opened() + n_ * n_ * sizeof(std::atomic<uint32_t>)); }
  size_t slots() const { return pages(lines() + n_ * kSteps * sizeof(Line)); }
  size_t channels() const { return slots() + n_ * kSteps * kSlotSize; }
  size_t size() const { return channels() + n_ * n_ * sizeof(Channel); }
  size_t ranks() const { return n_; }

 private:
  static size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  size_t n_;
};

// The segment in this process's address space.
class View {
 public:
  View(std::byte* base, int32_t world_size) : base_(base), layout_(world_size) {}

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  Member& member(int32_t rank) const {
    return reinterpret_cast<Member*>(base_ + layout_.members())[static_cast<size_t>(rank)];
  }
  // Set by the sender when it begins to use its channel.
  std::atomic<uint32_t>& opened(int32_t receiver, int32_t sender) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(base_ + layout_.opened())[pair(receiver, sender)];
  }
  Line& line(int32_t rank, uint32_t step) const {
    return reinterpret_cast<Line*>(base_ + layout_.lines())[static_cast<size_t>(rank) * kSteps + step % kSteps];
  }
  std::byte* slot(int32_t rank, uint32_t step) const {
    return base_ + layout_.slots() + (static_cast<size_t>(rank) * kSteps + step % kSteps) * kSlotSize;
  }
  Channel& channel(int32_t receiver, int32_t sender) const {
    return reinterpret_cast<Channel*>(base_ + layout_.channels())[pair(receiver, sender)];
  }
  const Layout& layout() const { return layout_; }
  std::byte* base() const { return base_; }

 private:
  size_t pair(int32_t receiver, int32_t sender) const {
    return static_cast<size_t>(receiver) * layout_.ranks() + static_cast<size_t>(sender);
  }
  std::byte* base_;
  Layout layout_;
};

}  // namespace backplane::shm
