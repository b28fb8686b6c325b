// SPDX-License-Identifier: Apache-2.0
//
// Allocations of a backend (abi/ext/memory.h): their properties, lifetime and threading.
#include "memory_support.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "../proc.hpp"
#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {

Source memory_of(Rank& rank, Agent& agent) {
  const auto* api = static_cast<const bp_memory_api*>(agent.api().extension(agent.self(), BP_EXT_MEMORY));
  if (api == nullptr) rank.skip(fmt::format("the backend hands out no memory ({})", BP_EXT_MEMORY));
  rank.require(BP_HAS(api, release) && api->allocate != nullptr && api->release != nullptr,
               fmt::format("a table of {} with allocate and release", BP_EXT_MEMORY), "one without");
  if (agent.mirrors()) return {*api, BP_CUDA, agent.mirrors()->device(), agent.mirrors()};
  const Piece piece({*api}, 1);
  if (piece.outcome().status == BP_UNSUPPORTED)
    rank.skip(fmt::format("no host memory here: {}", piece.outcome().text()));
  return {*api};
}

Piece::Piece(const Source& source, uint64_t bytes)
    : release_(source.api.release), size_(bytes), copies_(source.copies) {
  const bp_memory_api& api = source.api;
  outcome_.status = api.allocate(api.ctx, bytes, source.memory, source.device, &allocation_, &data_, &outcome_.error);
  if (!outcome_.ok()) allocation_ = nullptr;
}

Piece::Piece(Rank& rank, const Source& source, uint64_t bytes) : Piece(source, bytes) {
  rank.require_ok(outcome_, fmt::format("allocating {} bytes", bytes));
}

Piece::Piece(Piece&& other) noexcept { *this = std::move(other); }
Piece& Piece::operator=(Piece&& other) noexcept {
  std::swap(release_, other.release_);
  std::swap(allocation_, other.allocation_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(copies_, other.copies_);
  std::swap(outcome_, other.outcome_);
  return *this;
}

void Piece::release() {
  if (bp_allocation* const allocation = std::exchange(allocation_, nullptr); allocation != nullptr) {
    release_(allocation);
  }
}

void Piece::fill(uint64_t key) const {
  std::vector<std::byte> bytes(copies_ ? size_ : 0);
  std::byte* const to = copies_ ? bytes.data() : data();
  for (uint64_t i = 0; i < size_; ++i) to[i] = byte_at(key, i);
  if (copies_) copies_->copy(data_, bytes.data(), size_);
}

int64_t Piece::first_wrong(uint64_t key) const {
  std::vector<std::byte> bytes(copies_ ? size_ : 0);
  if (copies_ && !copies_->copy(bytes.data(), data_, size_)) return 0;
  const std::byte* const from = copies_ ? bytes.data() : data();
  for (uint64_t i = 0; i < size_; ++i) {
    if (from[i] != byte_at(key, i)) return static_cast<int64_t>(i);
  }
  return -1;
}

void require_kept(Rank& rank, const Piece& piece, uint64_t key, const std::string& when) {
  const int64_t wrong = piece.first_wrong(key);
  rank.require(wrong < 0, fmt::format("what was written, {}", when),
               fmt::format("other bytes, from {} of {} on", wrong, piece.size()));
}

namespace {

void aligned_and_apart(Rank& rank) {
  const auto agent = rank.open();
  const Source api = memory_of(rank, *agent);
  std::vector<Piece> pieces;
  for (const uint64_t bytes : {1, 63, 64, 4097, 100'000, 1 << 20, (1 << 20) + 1}) {
    for (int again = 0; again < 3; ++again) {
      pieces.emplace_back(rank, api, bytes);
      const auto address = reinterpret_cast<uintptr_t>(pieces.back().data());
      rank.require(address != 0 && address % 64 == 0, "an address that is a multiple of 64",
                   fmt::format("address {}", address));
      pieces.back().fill(pieces.size());
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    require_kept(rank, pieces[i], i + 1, "while other memory was allocated and written");
  }
  for (size_t i = 0; i < pieces.size(); i += 2) pieces[i].release();
  for (size_t i = 1; i < pieces.size(); i += 2) {
    require_kept(rank, pieces[i], i + 1, "while other memory was given back");
  }
}

// Unsatisfiable requests fail with the documented status and have no other effect.
void refusals(Rank& rank) {
  const auto agent = rank.open();
  const Source api = memory_of(rank, *agent);
  const Piece strange(Source{api.api, BP_MEMORY_COUNT + 7}, 64);
  rank.require(strange.outcome().status == BP_UNSUPPORTED, "BP_UNSUPPORTED for a kind of memory that does not exist",
               strange.outcome().text());
  check_report(rank, strange.outcome(), "allocating memory of a kind that does not exist");
  for (const uint64_t bytes : {UINT64_C(1) << 55, UINT64_MAX / 2, UINT64_MAX - 100, UINT64_MAX}) {
    const Piece piece(api, bytes);
    rank.require(piece.outcome().status == BP_RESOURCE, fmt::format("BP_RESOURCE for {} bytes", bytes),
                 piece.outcome().text());
    check_report(rank, piece.outcome(), "allocating far too much");
  }
  const Piece piece(rank, api, 1000);
  piece.fill(1);
  require_kept(rank, piece, 1, "after refusals");
  ring(rank, *agent, "after refusals of memory", 1);
}

// Allocation is local: one rank allocates while an operation waits for a rank that is late on purpose.
void local(Rank& rank) {
  const auto agent = rank.open();
  const Source api = memory_of(rank, *agent);
  std::vector<uint8_t> bytes = bytes_of(1, 1000);
  if (rank.id() == 1) {
    rank.await_value("rank 0 has its memory");
    rank.require_ok(agent->send(0, 3, bytes.data(), bytes.size()), "a send");
  } else if (rank.id() == 0) {
    std::vector<uint8_t> got(1000);
    Pending recv = agent->irecv(1, 3, got.data(), got.size());
    rank.step("allocating while a recv is pending and no other rank allocates");
    const Stopwatch watch;
    {
      const Piece first(rank, api, 100'000);
      const Piece second(rank, api, 64);
    }
    rank.check_time(watch.took(), rank.scaled(kSecond), "allocating, without waiting for operations or ranks, returns");
    rank.publish("rank 0 has its memory", "yes");
    rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)), "the recv");
  }
  rank.barrier();
}

void outlives_the_group(Rank& rank) {
  auto agent = rank.open();
  const Source api = memory_of(rank, *agent);
  Piece early(rank, api, 300'000);
  Piece late(rank, api, 300'000);
  early.fill(1);
  late.fill(2);
  rank.barrier();
  early.release();
  close_in_time(rank, *agent, "whose memory is still in use");
  agent.reset();
  rank.barrier();  // the other ranks have destroyed their groups
  rank.step("using memory of a group that is destroyed");
  if (!rank.run().on_device) {  // no group is left to copy device memory
    require_kept(rank, late, 2, "after the group was destroyed");
    late.fill(3);
    require_kept(rank, late, 3, "after the group was destroyed");
  }
  late.release();
  const auto next = rank.open({.space = "next"});
  const Piece piece(rank, memory_of(rank, *next), 1000);
  ring(rank, *next, "in a group after one whose memory outlived it", 1);
}

void after_abort(Rank& rank) {
  const auto agent = rank.open();
  const Source api = memory_of(rank, *agent);
  const Piece before(rank, api, 100'000);
  before.fill(1);
  rank.barrier();
  agent->abort(BP_CANCELLED, -1, "the case wants it");
  require_kept(rank, before, 1, "after an abort");
  rank.step("allocating after an abort");
  const Piece after(rank, api, 100'000);
  after.fill(2);
  require_kept(rank, before, 1, "after an abort");
  require_kept(rank, after, 2, "after an abort");
}

void gives_back(Rank& rank) {
  if (rank.run().on_device) rank.skip("the device memory of a process cannot be measured here");
  if (has_sanitizer()) rank.skip("a sanitizer keeps memory that was given back");
  const auto agent = rank.open();
  const Source api = memory_of(rank, *agent);
  constexpr uint64_t kSize = UINT64_C(4) << 20;
  constexpr uint64_t kLimit = 10 * kSize;
  constexpr uint64_t kHeap = UINT64_C(64) << 20;
  constexpr int kTimes = 60;
  const auto once = [&rank, &api] { Piece(rank, api, kSize).fill(1); };
  const auto grown = [&once] {
    once();
    const uint64_t before = resident_bytes();
    for (int i = 0; i < kTimes; ++i) once();
    const uint64_t after = resident_bytes();
    return after - std::min(before, after);
  };
  uint64_t more = grown();
  if (more >= kLimit && more < kHeap) more = grown();  // malloc may keep up to one of its heaps, but only once
  rank.require(more < kLimit, fmt::format("resident memory as before, having given back {} x 4 MiB", kTimes),
               fmt::format("{} MiB more", more >> 20));
}

void any_thread(Rank& rank) {
  const auto agent = rank.open();
  const Source api = memory_of(rank, *agent);
  struct Log {
    std::string wrong;
  };
  std::array<Log, 4> logs;
  {
    std::vector<std::unique_ptr<TestThread>> threads;
    for (size_t which = 0; which < logs.size(); ++which) {
      threads.push_back(std::make_unique<TestThread>([&log = logs[which], &api, which] {
        for (uint64_t i = 0; i < 100 && log.wrong.empty(); ++i) {
          const Piece piece(api, 1 + i * 500);
          if (!piece.outcome().ok()) {
            log.wrong = piece.outcome().text();
            return;
          }
          piece.fill(which + i);
          if (piece.first_wrong(which + i) >= 0) log.wrong = "other bytes than the thread had written";
        }
      }));
    }
    for (uint64_t i = 0; i < 5; ++i) ring(rank, *agent, "while threads allocate", i, i);
    for (const auto& thread : threads) {
      rank.require(thread->await(rank.hang_limit(kEndLimit)),
                   "threads that allocate at the same time to come to an end", "one that hangs");
    }
  }
  for (const Log& log : logs) rank.require(log.wrong.empty(), "memory for each of four threads", log.wrong);
}

}  // namespace

std::vector<Case> memory_cases() {
  return {
      Case("aligned-and-apart", "allocations are aligned to 64 bytes, usable at once, and disjoint", aligned_and_apart),
      Case("refusals", "a missing kind of memory is BP_UNSUPPORTED, an excessive size BP_RESOURCE", refusals),
      Case("local", "allocating waits neither for other ranks nor for operations", local, {.ranks = 2}),
      Case("outlives-the-group", "memory stays valid until it is released, also after the group's destroy",
           outlives_the_group),
      Case("after-abort", "after an abort memory stays valid and more can be allocated", after_abort),
      Case("gives-back", "released memory returns to the system", gives_back),
      Case("any-thread", "threads allocate and release at the same time, beside operations", any_thread),
  };
}

}  // namespace backplane::conformance
