// SPDX-License-Identifier: Apache-2.0
//
// Every native collective of the plugin gloo in worlds of 1 to 5 ranks: dtypes, roots, counts, in place and not.
#include <atomic>

#include "gloo_test.hpp"

namespace backplane::test {
namespace {

#ifdef __SANITIZE_THREAD__  // an event for each element
constexpr uint64_t kCounts[] = {0, 1, 7, 1023, 20'011};
#else
constexpr uint64_t kCounts[] = {0, 1, 7, 1023, 65537};
#endif
// The direct exchange sends at most 128 KiB from each rank: with three ranks, these are more, also of one byte each.
constexpr uint64_t kTooManyForDirect = 65'537;
constexpr uint64_t kSegments = 300'001;  // times the ranks: floats of which gloo sends each rank's part in two segments

class Collective : public testing::TestWithParam<int32_t> {
 protected:
  int32_t world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Collective, testing::Range(1, 6));

template <typename T>
constexpr uint32_t kDtype = 0;
template <>
constexpr uint32_t kDtype<int8_t> = BP_I8;
template <>
constexpr uint32_t kDtype<int32_t> = BP_I32;
template <>
constexpr uint32_t kDtype<uint64_t> = BP_U64;
template <>
constexpr uint32_t kDtype<float> = BP_F32;
template <>
constexpr uint32_t kDtype<double> = BP_F64;

template <typename T>
bp_op collective(uint32_t kind, uint64_t& seq) {
  bp_op op = make_op(kind, kDtype<T>);
  op.seq = seq++;
  op.flags = BP_OP_SYNC;
  return op;
}

template <typename T>
std::vector<T> sums(int32_t world, uint64_t count) {
  std::vector<T> result(count);
  for (int32_t rank = 0; rank < world; ++rank) {
    for (uint64_t i = 0; i < count; ++i) result[i] = static_cast<T>(result[i] + value<T>(rank, i));
  }
  return result;
}

template <typename T>
void check_all_reduce(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  for (const bool in_place : {false, true}) {
    std::vector<T> in = values<T>(rank, count);
    std::vector<T> out(count);
    bp_op op = collective<T>(BP_ALL_REDUCE, seq);
    op.input = span(in);
    op.output = in_place ? span(in) : span(out);
    expect_done(agent, op);
    EXPECT_EQ(in_place ? in : out, sums<T>(world, count));
    if (!in_place) {
      EXPECT_EQ(in, values<T>(rank, count));
    }
  }
}

template <typename T>
void check_reduce(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  for (int32_t root = 0; root < world; ++root) {
    for (const bool in_place : {false, true}) {
      std::vector<T> in = values<T>(rank, count);
      std::vector<T> out(count);
      bp_op op = collective<T>(BP_REDUCE, seq);
      op.root = root;
      op.input = span(in);
      if (rank == root) op.output = in_place ? span(in) : span(out);
      expect_done(agent, op);
      if (rank == root) {
        EXPECT_EQ(in_place ? in : out, sums<T>(world, count));
      }
      if (rank != root || !in_place) {
        EXPECT_EQ(in, values<T>(rank, count));
      }
    }
  }
}

template <typename T>
void check_broadcast(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  for (int32_t root = 0; root < world; ++root) {
    std::vector<T> data = values<T>(rank, count);
    bp_op op = collective<T>(BP_BROADCAST, seq);
    op.root = root;
    if (rank == root) op.input = span(data);
    op.output = span(data);
    expect_done(agent, op);
    EXPECT_EQ(data, values<T>(root, count));
  }
}

// All ranks' data one after the other.
template <typename T>
std::vector<T> gathered(int32_t world, uint64_t count) {
  std::vector<T> all;
  for (int32_t rank = 0; rank < world; ++rank) {
    const std::vector<T> block = values<T>(rank, count);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

template <typename T>
void check_gather(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  for (int32_t root = 0; root < world; ++root) {
    for (const bool in_place : {false, true}) {
      std::vector<T> in = values<T>(rank, count);
      std::vector<T> out(rank == root ? count * static_cast<uint64_t>(world) : 0);
      T* own = out.data() + static_cast<uint64_t>(rank) * count;
      bp_op op = collective<T>(BP_GATHER, seq);
      op.root = root;
      op.input = span(in);
      op.output = span(out);
      if (rank == root && in_place) {
        std::copy(in.begin(), in.end(), own);
        op.input = span(own, count);
      }
      expect_done(agent, op);
      if (rank == root) {
        EXPECT_EQ(out, gathered<T>(world, count));
      }
      EXPECT_EQ(in, values<T>(rank, count));
    }
  }
}

template <typename T>
void check_scatter(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  for (int32_t root = 0; root < world; ++root) {
    for (const bool in_place : {false, true}) {
      std::vector<T> in = rank == root ? gathered<T>(world, count) : std::vector<T>();
      std::vector<T> out(count);
      bp_op op = collective<T>(BP_SCATTER, seq);
      op.root = root;
      op.input = span(in);
      op.output = rank == root && in_place ? span(in.data() + static_cast<uint64_t>(rank) * count, count) : span(out);
      expect_done(agent, op);
      const T* got = static_cast<T*>(op.output.data);
      EXPECT_EQ(std::vector<T>(got, got + count), values<T>(rank, count));
      if (rank == root) {
        EXPECT_EQ(in, gathered<T>(world, count));
      }
    }
  }
}

template <typename T>
void check_all_gather(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  for (const bool in_place : {false, true}) {
    std::vector<T> in = values<T>(rank, count);
    std::vector<T> out(count * static_cast<uint64_t>(world));
    bp_op op = collective<T>(BP_ALL_GATHER, seq);
    op.input = span(in);
    op.output = span(out);
    if (in_place) {
      T* own = out.data() + static_cast<uint64_t>(rank) * count;
      std::copy(in.begin(), in.end(), own);
      op.input = span(own, count);
    }
    expect_done(agent, op);
    EXPECT_EQ(out, gathered<T>(world, count));
    EXPECT_EQ(in, values<T>(rank, count));
  }
}

// Rank r has count + r elements; with `gap` free elements between the blocks, which stay as they are.
template <typename T>
void check_all_gatherv(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t gap, uint64_t& seq) {
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displs;
  std::vector<T> expected;
  for (int32_t r = 0; r < world; ++r) {
    counts.push_back(count == 0 ? 0 : count + static_cast<uint64_t>(r));
    displs.push_back(expected.size());
    const std::vector<T> block = values<T>(r, counts.back());
    expected.insert(expected.end(), block.begin(), block.end());
    expected.insert(expected.end(), gap, T{99});
  }
  std::vector<T> in = values<T>(rank, counts[static_cast<size_t>(rank)]);
  std::vector<T> out(expected.size(), T{99});
  bp_op op = collective<T>(BP_ALL_GATHERV, seq);
  op.input = span(in);
  op.output = span(out);
  op.out_counts = counts.data();
  op.out_displs = displs.data();
  expect_done(agent, op);
  EXPECT_EQ(out, expected);
}

template <typename T>
void check_all_to_all(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  const uint64_t total = count * static_cast<uint64_t>(world);
  std::vector<T> expected;
  for (int32_t r = 0; r < world; ++r) {
    const std::vector<T> block = values<T>(r, count, static_cast<uint64_t>(rank) * count);
    expected.insert(expected.end(), block.begin(), block.end());
  }
  for (const bool in_place : {false, true}) {
    std::vector<T> in = values<T>(rank, total);
    std::vector<T> out(total);
    bp_op op = collective<T>(BP_ALL_TO_ALL, seq);
    op.input = span(in);
    op.output = in_place ? span(in) : span(out);
    expect_done(agent, op);
    EXPECT_EQ(in_place ? in : out, expected);
    if (!in_place) {
      EXPECT_EQ(in, values<T>(rank, total));
    }
  }
}

// Rank r sends `count` + s elements to rank s, taken from and put to blocks in reverse order.
template <typename T>
void check_all_to_allv(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  const auto ranks = static_cast<uint64_t>(world);
  const uint64_t stride = count + ranks;
  std::vector<uint64_t> in_counts;
  std::vector<uint64_t> out_counts;
  std::vector<uint64_t> displs;
  std::vector<T> expected(stride * ranks, T{99});
  for (uint64_t r = 0; r < ranks; ++r) {
    in_counts.push_back(count == 0 ? 0 : count + r);
    out_counts.push_back(count == 0 ? 0 : count + static_cast<uint64_t>(rank));
    displs.push_back((ranks - 1 - r) * stride);
    const std::vector<T> block =
        values<T>(static_cast<int32_t>(r), out_counts[r], (ranks - 1 - static_cast<uint64_t>(rank)) * stride);
    std::copy(block.begin(), block.end(), expected.begin() + static_cast<ptrdiff_t>(displs[r]));
  }
  std::vector<T> in = values<T>(rank, stride * ranks);
  std::vector<T> out(stride * ranks, T{99});
  bp_op op = collective<T>(BP_ALL_TO_ALLV, seq);
  op.input = span(in);
  op.output = span(out);
  op.in_counts = in_counts.data();
  op.in_displs = displs.data();
  op.out_counts = out_counts.data();
  op.out_displs = displs.data();
  expect_done(agent, op);
  EXPECT_EQ(out, expected);
  EXPECT_EQ(in, values<T>(rank, stride * ranks));
}

template <typename T>
void check_everything(Agent& agent, int32_t rank, int32_t world, uint64_t& seq) {
  for (const uint64_t count : kCounts) {
    check_all_reduce<T>(agent, rank, world, count, seq);
    check_reduce<T>(agent, rank, world, count, seq);
    check_broadcast<T>(agent, rank, world, count, seq);
    check_gather<T>(agent, rank, world, count, seq);
    check_scatter<T>(agent, rank, world, count, seq);
    check_all_gather<T>(agent, rank, world, count, seq);
    check_all_gatherv<T>(agent, rank, world, count, 0, seq);
    check_all_gatherv<T>(agent, rank, world, count, 3, seq);
    check_all_to_all<T>(agent, rank, world, count, seq);
    check_all_to_allv<T>(agent, rank, world, count, seq);
  }
  check_all_reduce<T>(agent, rank, world, kTooManyForDirect, seq);
}

TEST_P(Collective, GivesTheRightAnswer) {
  on_group(world(), [this](Agent& agent, int32_t rank) {
    uint64_t seq = UINT64_C(0xfffffff0);  // crosses the 32 bits of gloo's tags
    check_everything<int8_t>(agent, rank, world(), seq);
    check_everything<int32_t>(agent, rank, world(), seq);
    check_everything<double>(agent, rank, world(), seq);
  });
}

TEST_P(Collective, AllReducesWithEachAlgorithm) {
  for (const char* algorithm : {"ring", "bcube", "direct"}) {
    on_group(world(),
             [this](Agent& agent, int32_t rank) {
               uint64_t seq = 0;
               for (const uint64_t count : kCounts) check_all_reduce<uint64_t>(agent, rank, world(), count, seq);
               check_all_reduce<float>(agent, rank, world(), kSegments * static_cast<uint64_t>(world()), seq);
             },
             {{"algorithm", algorithm}});
  }
}

TEST_P(Collective, ReducesMoreThanOneSegment) {
  on_group(world(), [this](Agent& agent, int32_t rank) {
    uint64_t seq = 0;
    check_reduce<float>(agent, rank, world(), kSegments * static_cast<uint64_t>(world()), seq);
  });
}

// Sums of floats depend on the order; all ranks must have used the same one.
TEST_P(Collective, AllReduceGivesTheSameBitsEverywhere) {
  for (const char* algorithm : {"auto", "ring", "bcube", "direct"}) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{1000}, uint64_t{70000}}) {
      std::vector<std::vector<float>> results(static_cast<size_t>(world()));
      on_group(world(),
               [&results, count](Agent& agent, int32_t rank) {
                 std::vector<float>& data = results[static_cast<size_t>(rank)];
                 for (uint64_t i = 0; i < count; ++i) {
                   data.push_back(1.0F / static_cast<float>(i + 3 + static_cast<uint64_t>(rank) * 1000));
                 }
                 bp_op op = make_op(BP_ALL_REDUCE, BP_F32);
                 op.input = op.output = span(data);
                 expect_done(agent, op);
               },
               {{"algorithm", algorithm}});
      for (const std::vector<float>& result : results) {
        EXPECT_EQ(std::memcmp(result.data(), results[0].data(), count * sizeof(float)), 0);
      }
    }
  }
}

// Nobody leaves the barrier before the last one has come.
TEST_P(Collective, BarrierWaitsForAll) {
  std::atomic<int32_t> arrived = 0;
  on_group(world(), [this, &arrived](Agent& agent, int32_t) {
    for (int32_t round = 1; round <= 50; ++round) {
      bp_op op = make_op(BP_BARRIER);
      op.seq = static_cast<uint64_t>(2 * round);
      op.flags = BP_OP_SYNC;
      ++arrived;
      expect_done(agent, op);
      EXPECT_GE(arrived.load(), round * world());
      op.seq += 1;
      expect_done(agent, op);
    }
  });
}

// Several at once, on two threads, waited for in the opposite order.
TEST_P(Collective, RunsSeveralAtOnce) {
  constexpr uint64_t kAtOnce = 12;
  on_group(world(), [this](Agent& agent, int32_t rank) {
    std::vector<std::vector<int32_t>> data;
    std::vector<bp_work*> works;
    for (uint64_t i = 0; i < kAtOnce; ++i) data.push_back(values<int32_t>(rank, 1000 * i + 1));
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      bp_op op = make_op(BP_ALL_REDUCE, BP_I32);
      op.seq = i;
      op.input = op.output = span(data[i]);
      works.push_back(started(agent, op));
    }
    for (uint64_t i = kAtOnce; i-- > 0;) {
      EXPECT_EQ(finished(agent, works[i]), BP_OK);
      EXPECT_EQ(data[i], sums<int32_t>(world(), 1000 * i + 1));
    }
  });
}

}  // namespace
}  // namespace backplane::test
