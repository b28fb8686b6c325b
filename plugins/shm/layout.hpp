// SPDX-License-Identifier: Apache-2.0
//
// What lies where in the segment that the ranks of a group share. Everything follows from the number of ranks, which
// each rank knows from init: no offset is ever read from the segment itself. The memory begins as zeros.
//
//   Header | Member[n] | opened flags [receiver][sender] | Line[n][kSteps] | slot[n][kSteps] |
//   Channel[receiver][sender] | heap[n]
//
// The heaps (heap.hpp) are mapped one by one, if ever; the rest is what every rank maps, a View.
//
// The table of channels is large but sparse: the pages of a channel that is not used are never touched.
//
// Whatever another rank may write is read once into a local, and checked before it is used as a size.
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
constexpr int32_t kMostRanks = 1024;
constexpr uint64_t kMostHeaps = UINT64_C(1) << 43;  // bytes of address space of all heaps together

constexpr size_t kMostElders = 8;  // groups whose memory a new one can use, too (pools.hpp)

// Collectives: each rank has kSteps lines and slots, used in turn.
constexpr uint32_t kSteps = 8;
constexpr size_t kSlotSize = size_t{64} << 10;  // bytes
constexpr size_t kLineData = 120;               // bytes that travel in the line of their flag

// Messages: each ordered pair of ranks has a ring of heads and a ring of bytes.
constexpr uint32_t kHeads = 128;
constexpr size_t kHeadData = 48;                     // bytes of a message that travel in its head
constexpr uint64_t kRingSize = UINT64_C(128) << 10;  // bytes
constexpr uint64_t kEagerLimit = UINT64_C(8) << 10;  // bytes of a message that is sent unasked
constexpr uint64_t kPiece = UINT64_C(16) << 10;      // bytes of data with one head; two must fit into the ring
constexpr uint64_t kWindow = UINT64_C(1) << 20;      // eager bytes per pair that no receive has taken
constexpr uint64_t kOverhead = 128;                  // what each eager message counts beside its data
constexpr uint64_t kTurn = UINT64_C(1) << 20;        // bytes that are copied from one rank before it is others' turn

using Token = std::array<unsigned char, 16>;

enum class Go : uint32_t { kWait = 0, kGo = 1, kAgain = 2, kRefused = 3 };

struct Header {  // NOLINT(clang-analyzer-optin.performance.Padding): departures have a line of their own
  uint64_t magic;
  Token token;
  int32_t world_size;
  std::atomic<uint32_t> arrived;                 // ranks other than 0 that have mapped the segment; a futex for rank 0
  std::atomic<uint32_t> go;                      // Go; a futex for the others
  alignas(64) std::atomic<uint32_t> departures;  // changes with each Member::state that changes for the worse
};

// A futex on which threads of one rank sleep. Who makes something happen rings it if there are sleepers.
struct Bell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;
};

enum class State : uint32_t { kAbsent = 0, kPresent = 1, kLeft = 2, kAborted = 3, kDead = 4 };

constexpr size_t kWhySize = 640;

struct alignas(64) Member {  // NOLINT(clang-analyzer-optin.performance.Padding): so have the bell and the state
  alignas(64) Bell bell;
  alignas(64) std::atomic<uint32_t> state;  // State
  int32_t pid;
  uint64_t born;           // start time of the process, in ticks since boot
  uint64_t pid_namespace;  // inode: process ids mean the same to ranks with the same one
  Processors cpus;         // those that the rank may run on
  Site site;
  std::atomic<uint32_t> broke_loan;  // 1: a collective failed, and with it what this rank had lent for others to read
  std::atomic<uint32_t> cpu;         // 1 + the one on which it last waited for long
  uint32_t has_membarrier;           // 1: registered for it
  uint32_t has_room;                 // 1: for all heaps, in its address space
  std::array<uint64_t, kMostElders> elders;  // ids of groups, or 0
  // By which others know that it is this process that they read (cross_memory.hpp).
  uint64_t mark;
  uint64_t mark_address;
  // Written before state becomes kAborted.
  int32_t why_status;
  int32_t why_rank;
  std::array<char, kWhySize> why;
};

// The part of one rank in one step of a collective: flag and data travel together.
struct alignas(128) Line {
  std::atomic<uint32_t> step;
  uint32_t what;  // a digest of the operation, so that ranks see when they do not agree
  std::array<std::byte, kLineData> data;
};
static_assert(sizeof(Line) == 128);

enum class Kind : uint8_t {
  kInline = 1,    // a whole message in the head
  kEager = 2,     // a whole message; its bytes in the ring
  kAnnounce = 3,  // a message waits at the sender: id, size
  kReady = 4,     // the answer to it: id; size 0: drop it, 1: send it
  kData = 5,      // a piece of it in the ring: id
  kWithdraw = 6   // the announcement is void: id
};

// An announced message whose bytes others may read where they lie.
struct Loan {
  uint64_t place;    // in the sender's memory (pools.hpp, cross_memory.hpp); 0: there is no loan
  uint32_t revoked;  // Channel::revoked at that time
};

// Of an announced message, and of what belongs to it.
struct Control {
  uint64_t id;
  uint64_t size;
  Loan loan;  // kAnnounce
};

struct alignas(64) Head {
  std::atomic<uint32_t> turn;  // 1 + the number of this head; written last
  uint32_t kind_and_length;    // Kind in the lowest byte, above it bytes of payload
  uint64_t tag;
  union {
    std::array<std::byte, kHeadData> bytes;
    Control control;
  };
};
static_assert(sizeof(Head) == 64);

struct alignas(kPage) Channel {
  // Written by the receiver, from 0 up.
  alignas(64) std::atomic<uint32_t> read_heads;
  std::atomic<uint64_t> read_bytes;
  std::atomic<uint64_t> taken;  // eager bytes, with kOverhead for each message, that receives have taken
  // Set by the sender when it finds no room, cleared by the receiver when it has made some.
  alignas(64) std::atomic<uint32_t> blocked;
  // Written by the sender. Counts the loans that it took back, each before its buffer is the program's again.
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
