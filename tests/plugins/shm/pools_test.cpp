// SPDX-License-Identifier: Apache-2.0
//
// Groups whose buffers lie in the memory of an older group.
#include "pools.hpp"

#include "fabric.hpp"

namespace backplane::shm::test {
namespace {

constexpr uint64_t kHeap = UINT64_C(8) << 20;
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
  return std::make_shared<Heaps>(another(file.get()), 0, kHeap, rank, ranks);
}

TEST(Pools, GroupsKnowTheirElders) {
  const sdk::Descriptor file = make_anonymous(4 * kHeap);
  const std::vector<int32_t> world = {10, 11, 12, 13};
  const auto heaps = heaps_of(file, 1, 4);
  become_elder(77, context_of(world, 1), heaps);
  const auto of_a_split = elders_of(context_of({13, 11}, 1));
  ASSERT_EQ(of_a_split.size(), 1U);
  EXPECT_EQ(of_a_split[0].id, 77U);
  EXPECT_EQ(of_a_split[0].owners, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(of_a_split[0].heaps, heaps);
  EXPECT_TRUE(elders_of(context_of({13, 11}, 0)).empty()) << "those of another rank, on a thread of this process";
  EXPECT_TRUE(elders_of(context_of({11, 14}, 0)).empty()) << "14 is not in the older group";
  const auto second = heaps_of(file, 1, 4);
  become_elder(78, context_of(world, 1), second);
  EXPECT_EQ(elders_of(context_of(world, 1)).size(), 2U);
  retire_elder(heaps);
  EXPECT_EQ(elders_of(context_of(world, 1)).size(), 1U);
  retire_elder(second);
}

TEST(Pools, AnElderThatHasEndedIsNone) {
  const sdk::Descriptor file = make_anonymous(2 * kHeap);
  const auto heaps = heaps_of(file, 0, 2);
  become_elder(79, context_of({20, 21}, 0), heaps);
  const auto kept = elders_of(context_of({20, 21}, 0));  // as by a younger group
  ASSERT_EQ(kept.size(), 1U);
  retire_elder(heaps);
  EXPECT_TRUE(elders_of(context_of({20, 21}, 0)).empty());
}

// Ranks 3 and 1 of a group of four, as a group of their own.
struct Split {
  Split() {
    for (int32_t rank = 0; rank < 2; ++rank) {
      const int32_t before = rank == 0 ? 3 : 1;
      elders.push_back(heaps_of(old_file, before, 4));
      pools.emplace_back(heaps_of(new_file, rank, 2));
      pools.back().add({1, {3, 1}, elders.back()});
    }
  }
  const sdk::Descriptor old_file = make_anonymous(4 * kHeap);
  const sdk::Descriptor new_file = make_anonymous(2 * kHeap);
  std::vector<std::shared_ptr<Heaps>> elders;
  std::vector<Pools> pools;
};

void all_reduce(Rank& rank, uint32_t* in, uint32_t* out, int64_t timeout_ns = Rank::kLong) {
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_U32;
  op.input = {in, kCount, BP_HOST, 0};
  op.output = {out, kCount, BP_HOST, 0};
  Limit limit(timeout_ns);
  rank.collectives.run(op, limit);
}

uint32_t* numbers_in(const std::unique_ptr<sdk::Allocation>& block) { return static_cast<uint32_t*>(block->data()); }

// Did anything go through the slots of a group?
bool was_staged(const View& view, int32_t ranks) {
  const std::byte* const begin = view.slot(0, 0);
  const std::byte* const end = begin + static_cast<size_t>(ranks) * kSteps * kSlotSize;
  return std::any_of(begin, end, [](std::byte each) { return each != std::byte{0}; });
}

TEST(Pools, ASplitUsesTheMemoryOfTheWhole) {
  const Split split;
  const Memory memory(2);
  run_ranks(
      memory, 2, Patience{20'000, 200'000},
      [&split](Rank& rank) {
        Heaps& elder = *split.elders[static_cast<size_t>(rank.id)];
        const auto in = elder.allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
        const auto own = rank.own_heap->allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
        std::fill_n(numbers_in(in), kCount, static_cast<uint32_t>(rank.id) + 5);
        all_reduce(rank, numbers_in(in), numbers_in(own));  // one buffer in each pool
        all_reduce(rank, numbers_in(own), numbers_in(in));
        EXPECT_EQ(std::count(numbers_in(in), numbers_in(in) + kCount, 22U), int64_t{kCount});
      },
      split.pools);
  EXPECT_FALSE(was_staged(memory.view, 2));
}

TEST(Pools, MemoryThatNotAllCanReachIsStaged) {
  const Split split;
  const sdk::Descriptor other_file = make_anonymous(2 * kHeap);
  const Memory memory(2);
  run_ranks(
      memory, 2, Patience{20'000, 200'000},
      [&other_file](Rank& rank) {
        const auto stranger = heaps_of(other_file, rank.id, 2);
        const auto data = stranger->allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
        std::fill_n(numbers_in(data), kCount, static_cast<uint32_t>(rank.id) + 5);
        all_reduce(rank, numbers_in(data), numbers_in(data));
        EXPECT_EQ(std::count(numbers_in(data), numbers_in(data) + kCount, 11U), int64_t{kCount});
      },
      split.pools);
  EXPECT_TRUE(was_staged(memory.view, 2));
}

// What was lent when a collective failed is no longer what the others would see.
TEST(Pools, AfterAFailureNothingOfThatPoolIsLent) {
  const Split split;
  const Memory memory(2);
  Rank early(memory.view, 0, 2, Patience{20'000, 0}, &split.pools[0]);
  const Rank late(memory.view, 1, 2, Patience{20'000, 0}, &split.pools[1]);
  const auto data = split.elders[0]->allocate(kCount * sizeof(uint32_t), BP_HOST, 0);
  const auto* const bytes = static_cast<const std::byte*>(data->data());
  ASSERT_NE(split.elders[0]->place_of(bytes, 4), 0U);
  EXPECT_EQ(status_of([&] { all_reduce(early, numbers_in(data), numbers_in(data), 1'000'000); }), BP_TIMEOUT);
  EXPECT_EQ(split.elders[0]->place_of(bytes, 4), 0U);
  std::string text;
  EXPECT_EQ(status_of([&split] { split.elders[0]->allocate(1, BP_HOST, 0); }, &text), BP_UNSUPPORTED);
  EXPECT_EQ(text, "a collective failed that had lent memory of this rank");
  std::fill_n(numbers_in(data), kCount, 9U);  // it is memory still
  EXPECT_NE(split.elders[1]->at(3, 1, 4, 4), nullptr);
}

}  // namespace
}  // namespace backplane::shm::test
