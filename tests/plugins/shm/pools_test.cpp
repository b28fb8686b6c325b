// SPDX-License-Identifier: Apache-2.0
//
// Groups with buffers in the memory of an older group.
#include "pools.hpp"

#include "ranks.hpp"

namespace backplane::shm::test {
namespace {

constexpr uint64_t kPoolHeap = UINT64_C(8) << 20;
constexpr uint64_t kCount = 40'000;

sdk::Context context_of(const std::vector<int32_t>& global_ranks, int32_t rank) {
  bp_init init = {};
  init.struct_size = sizeof init;
  init.rank = rank;
  init.world_size = static_cast<int32_t>(global_ranks.size());
  init.name = "test";
  init.host = host();
  init.global_ranks = global_ranks.data();
  return sdk::Context(init);
}

std::shared_ptr<Heaps> heaps_of(const sdk::Descriptor& file, int32_t rank, int32_t ranks) {
  return std::make_shared<Heaps>(duplicate(file.get()), 0, kPoolHeap, rank, ranks);
}

TEST(Pools, FindsOlderGroups) {
  const sdk::Descriptor file = make_anonymous(4 * kPoolHeap);
  const std::vector<int32_t> world = {10, 11, 12, 13};
  const auto heaps = heaps_of(file, 1, 4);
  register_group(77, context_of(world, 1), heaps);
  const auto of_a_split = older_groups_of(context_of({13, 11}, 1));
  ASSERT_EQ(of_a_split.size(), 1U);
  EXPECT_EQ(of_a_split[0].id, 77U);
  EXPECT_EQ(of_a_split[0].owners, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(of_a_split[0].heaps, heaps);
  EXPECT_TRUE(older_groups_of(context_of({13, 11}, 0)).empty())
      << "a group of another rank on a thread of this process";
  EXPECT_TRUE(older_groups_of(context_of({11, 14}, 0)).empty()) << "14 is not in the older group";
  const auto second = heaps_of(file, 1, 4);
  register_group(78, context_of(world, 1), second);
  EXPECT_EQ(older_groups_of(context_of(world, 1)).size(), 2U);
  unregister_group(heaps);
  EXPECT_EQ(older_groups_of(context_of(world, 1)).size(), 1U);
  unregister_group(second);
}

TEST(Pools, IgnoresGroupsThatHaveEnded) {
  const sdk::Descriptor file = make_anonymous(2 * kPoolHeap);
  const auto heaps = heaps_of(file, 0, 2);
  register_group(79, context_of({20, 21}, 0), heaps);
  const auto kept = older_groups_of(context_of({20, 21}, 0));  // kept alive by a newer group
  ASSERT_EQ(kept.size(), 1U);
  unregister_group(heaps);
  EXPECT_TRUE(older_groups_of(context_of({20, 21}, 0)).empty());
}

// Ranks 3 and 1 of a group of four, as a group of their own.
struct Split {
  Split() {
    for (int32_t rank = 0; rank < 2; ++rank) {
      const int32_t before = rank == 0 ? 3 : 1;
      older_groups.push_back(heaps_of(old_file, before, 4));
      pools.emplace_back(heaps_of(new_file, rank, 2));
      pools.back().add({1, {3, 1}, older_groups.back()});
    }
  }
  const sdk::Descriptor old_file = make_anonymous(4 * kPoolHeap);
  const sdk::Descriptor new_file = make_anonymous(2 * kPoolHeap);
  std::vector<std::shared_ptr<Heaps>> older_groups;
  std::vector<Pools> pools;
};

void all_reduce(Rank& rank, uint32_t* in, uint32_t* out, int64_t timeout_ns = Rank::kLong) {
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_U32;
  op.input = {in, kCount, BP_HOST, 0};
  op.output = {out, kCount, BP_HOST, 0};
  LazyDeadline deadline(timeout_ns);
  rank.collectives.run(op, deadline);
}

uint32_t* numbers_in(const std::unique_ptr<sdk::Allocation>& block) { return static_cast<uint32_t*>(block->data()); }

// Whether any data went through the slots of a group.
bool was_staged(const View& view, int32_t ranks) {
  const std::byte* const begin = view.slot(0, 0);
  const std::byte* const end = begin + static_cast<size_t>(ranks) * kSteps * kSlotSize;
  return std::any_of(begin, end, [](std::byte each) { return each != std::byte{0}; });
}

TEST(Pools, SubgroupUsesItsParentsMemory) {
  const Split split;
  const Memory memory(2);
  run_ranks(
      memory, 2, WaitPolicy{20'000, 200'000},
      [&split](Rank& rank) {
        Heaps& older_group = *split.older_groups[static_cast<size_t>(rank.id)];
        const auto in = older_group.allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
        const auto own = rank.own_heap->allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
        std::fill_n(numbers_in(in), kCount, static_cast<uint32_t>(rank.id) + 5);
        all_reduce(rank, numbers_in(in), numbers_in(own));  // one buffer in each pool
        all_reduce(rank, numbers_in(own), numbers_in(in));
        EXPECT_EQ(std::count(numbers_in(in), numbers_in(in) + kCount, 22U), int64_t{kCount});
      },
      split.pools);
  EXPECT_FALSE(was_staged(memory.view, 2));
}

TEST(Pools, UnsharedMemoryIsStaged) {
  const Split split;
  const sdk::Descriptor other_file = make_anonymous(2 * kPoolHeap);
  const Memory memory(2);
  run_ranks(
      memory, 2, WaitPolicy{20'000, 200'000},
      [&other_file](Rank& rank) {
        const auto unshared = heaps_of(other_file, rank.id, 2);
        const auto data = unshared->allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
        std::fill_n(numbers_in(data), kCount, static_cast<uint32_t>(rank.id) + 5);
        all_reduce(rank, numbers_in(data), numbers_in(data));
        EXPECT_EQ(std::count(numbers_in(data), numbers_in(data) + kCount, 11U), int64_t{kCount});
      },
      split.pools);
  EXPECT_TRUE(was_staged(memory.view, 2));
}

// Buffers exposed when a collective failed are no longer shared.
TEST(Pools, PoolIsDisabledAfterAFailure) {
  const Split split;
  const Memory memory(2);
  Rank early(memory.view, 0, 2, WaitPolicy{20'000, 0}, &split.pools[0]);
  const Rank late(memory.view, 1, 2, WaitPolicy{20'000, 0}, &split.pools[1]);
  const auto data = split.older_groups[0]->allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
  const auto* const bytes = static_cast<const std::byte*>(data->data());
  ASSERT_NE(split.older_groups[0]->location_of(bytes, 4), 0U);
  EXPECT_EQ(status_of([&] { all_reduce(early, numbers_in(data), numbers_in(data), 1'000'000); }), BP_TIMEOUT);
  EXPECT_EQ(split.older_groups[0]->location_of(bytes, 4), 0U);
  std::string text;
  EXPECT_EQ(status_of([&split] { split.older_groups[0]->allocate(1, BP_HOST, 0); }, &text), BP_UNSUPPORTED);
  EXPECT_EQ(text, "the heap is disabled: a collective that exposed it has failed");
  std::fill_n(numbers_in(data), kCount, 9U);  // still usable memory
  EXPECT_NE(split.older_groups[1]->at(3, 1, 4, 4), nullptr);
}

}  // namespace
}  // namespace backplane::shm::test
