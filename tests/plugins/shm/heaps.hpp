// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the plugin shm with heaps.
#pragma once

#include <sys/stat.h>

#include "heap.hpp"
#include "ranks.hpp"

namespace backplane::shm::test {

constexpr uint64_t kHeap = UINT64_C(64) << 20;

// The heaps of some ranks in one file, mapped by each rank separately.
struct Shared {
  explicit Shared(int32_t ranks) : file(make_anonymous(static_cast<size_t>(ranks) * kHeap)) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      heaps.push_back(std::make_shared<Heaps>(duplicate(file.get()), 0, kHeap, rank, ranks));
      pools.emplace_back(heaps.back());
    }
  }
  uint64_t used() const {  // bytes
    struct stat facts {};
    fstat(file.get(), &facts);
    return static_cast<uint64_t>(facts.st_blocks) * 512;
  }

  sdk::Descriptor file;
  std::vector<std::shared_ptr<Heaps>> heaps;
  std::vector<Pools> pools;  // of the heaps
};

constexpr uint32_t kUntouched = 0xeeeeeeee;

// Memory of a heap, or ordinary memory.
struct Numbers {
  Numbers(Heaps& heap, uint64_t size) : Numbers(&heap, size) {}
  Numbers(Heaps* heap, uint64_t size)
      : block(heap == nullptr ? nullptr : heap->allocate(size * sizeof(uint32_t), BP_HOST, 0)),
        ordinary(heap == nullptr ? std::make_unique<uint32_t[]>(size) : nullptr),
        count(size) {}
  uint32_t* data() const { return block ? static_cast<uint32_t*>(block->data()) : ordinary.get(); }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(data()); }
  void fill(uint32_t value) const { std::fill_n(data(), count, value); }
  bool all(uint32_t value) const {
    return std::all_of(data(), data() + count, [value](uint32_t each) { return each == value; });
  }

  std::unique_ptr<sdk::Allocation> block;
  std::unique_ptr<uint32_t[]> ordinary;
  uint64_t count;
};

// The number of bytes that are not zero.
inline uint64_t written(const std::byte* begin, uint64_t size) {
  return size - static_cast<uint64_t>(std::count(begin, begin + size, std::byte{0}));
}

// Ranks that share a view. Each maps the heaps.
template <typename Body>
void on_heaps(int32_t ranks, const WaitPolicy& policy, const Body& body, Cma cma = Cma::kOff) {
  const Shared shared(ranks);
  run_ranks(Memory(ranks), ranks, policy, body, shared.pools, cma);
}

}  // namespace backplane::shm::test
