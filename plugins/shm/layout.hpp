// SPDX-License-Identifier: Apache-2.0
//
// The layout of the segment that the ranks of a group share. All offsets follow from the number of ranks and the bytes
// of staging; none is read from the segment. The memory begins as zeros.
//
//   Header | Member[n] | opened flags [receiver][sender] | Line[n][kSteps] | slot[n][Staging::slots] |
//   (Channel, ring)[receiver][sender] | heap[n]
//
// Heaps (heap.hpp) are mapped one by one on demand. Every rank maps the rest, a View. The table of channels is large
// but sparse: pages of unused channels are never touched.
//
// Values that another rank can write are read once into a local variable and checked before use as a size.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "topology.hpp"

namespace backplane::shm {

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

constexpr uint64_t kMagic = UINT64_C(0x424d485350414c42);  // "BLAPSHMB"
constexpr size_t kPage = 4096;
constexpr int32_t kMaxRanks = 1024;
constexpr uint64_t kMaxHeapBytes = UINT64_C(1) << 43;  // bytes of address space of all heaps together

constexpr size_t kMaxOlderGroups = 8;  // older groups whose memory a group can use (pools.hpp)

// Collectives: each rank has kSteps lines and a multiple of kSteps slots, used in turn.
constexpr uint32_t kSteps = 8;
constexpr size_t kSlotSize = size_t{64} << 10;  // bytes
constexpr size_t kLineData = 120;               // bytes stored in the line itself

// Messages: each ordered pair of ranks has a ring of heads and a ring of bytes.
constexpr uint32_t kHeads = 128;
constexpr size_t kHeadData = 48;                     // bytes of a message stored in its head
constexpr uint64_t kMinRing = UINT64_C(128) << 10;   // bytes
constexpr uint64_t kEagerLimit = UINT64_C(8) << 10;  // bytes; longer messages are announced first
constexpr uint64_t kMaxEager = UINT64_C(64) << 10;   // bytes; the same where ranks do not spin
constexpr uint64_t kPiece = UINT64_C(16) << 10;      // bytes of data per head
constexpr uint64_t kWindow = UINT64_C(1) << 20;      // eager bytes per pair that no receive has taken
constexpr uint64_t kOverhead = 128;                  // counted for each eager message in addition to its data
constexpr uint64_t kMaxBatch = UINT64_C(1) << 20;    // bytes copied from one rank before others get their turn

static_assert(2 * std::max(kPiece, kMaxEager) <= kMinRing, "a piece fits wherever the ring wraps");

// The memory through which a rank passes data that the others cannot read in place: its slots, and the rings of its
// channels to the other ranks. Slots and rings are used in order, so each of their lines returns only after all others
// (topology.hpp). All numbers are powers of two.
struct Staging {
  static constexpr uint64_t kLeast = kSteps * kSlotSize;         // bytes
  static constexpr uint64_t kMost = UINT64_C(16) << 20;          // bytes
  static constexpr uint64_t kMostSlots = UINT64_C(16) << 20;     // bytes of all ranks that a default may take
  static constexpr uint64_t kMostByDefault = UINT64_C(2) << 20;  // bytes

  // `bytes` from kLeast to kMost for the slots of a rank, and again for its rings, which have at least kMinRing each.
  Staging(uint64_t bytes, int32_t world_size)
      : slots(static_cast<uint32_t>(bytes / kSlotSize)),
        ring(std::max(kMinRing, std::bit_floor(bytes / static_cast<uint64_t>(std::max(1, world_size - 1))))) {}
  static bool is_valid(uint64_t bytes) { return std::has_single_bit(bytes) && bytes >= kLeast && bytes <= kMost; }
  // Of `wanted` bytes as many as a group of this size takes by default.
  static uint64_t limited(uint64_t wanted, int32_t world_size) {
    const uint64_t each = std::bit_floor(kMostSlots / static_cast<uint64_t>(world_size));
    return std::clamp(std::bit_floor(std::min(wanted, each)), kLeast, kMostByDefault);
  }

  uint32_t slots;  // of each rank
  uint64_t ring;   // bytes, of each channel
};

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
  uint32_t may_read;                        // 1: its options permit process_vm_readv (cross_memory.hpp)
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
};

// The bytes of a channel.
struct Ring {
  std::byte* data = nullptr;
  uint64_t size = kMinRing;  // a power of two
};

class Layout {
 public:
  Layout(int32_t world_size, uint64_t staging) : n_(static_cast<size_t>(world_size)), staging_(staging, world_size) {}

  size_t members() const { return pages(sizeof(Header)); }
  size_t opened() const { return members() + n_ * sizeof(Member); }
  size_t lines() const { return pages(opened() + n_ * n_ * sizeof(std::atomic<uint32_t>)); }
  size_t slots() const { return pages(lines() + n_ * kSteps * sizeof(Line)); }
  size_t channels() const { return slots() + n_ * staging_.slots * kSlotSize; }
  size_t channel_size() const { return sizeof(Channel) + staging_.ring; }
  size_t size() const { return channels() + n_ * n_ * channel_size(); }
  // Bytes of memory that exist once all ranks have joined, and once each has exchanged messages with all others. Heaps
  // come on top.
  size_t initial_memory() const { return channels(); }
  size_t max_memory() const { return channels() + n_ * (n_ - 1) * channel_size(); }
  size_t ranks() const { return n_; }
  const Staging& staging() const { return staging_; }

 private:
  static size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  size_t n_;
  Staging staging_;
};

// The segment in this process's address space.
class View {
 public:
  View(std::byte* base, const Layout& layout) : base_(base), layout_(layout) {}

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
    const uint32_t slots = layout_.staging().slots;
    return base_ + layout_.slots() + (static_cast<size_t>(rank) * slots + step % slots) * kSlotSize;
  }
  Channel& channel(int32_t receiver, int32_t sender) const {
    return *reinterpret_cast<Channel*>(base_ + layout_.channels() + pair(receiver, sender) * layout_.channel_size());
  }
  Ring ring(int32_t receiver, int32_t sender) const {
    return {reinterpret_cast<std::byte*>(&channel(receiver, sender) + 1), layout_.staging().ring};
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
