// SPDX-License-Identifier: Apache-2.0
//
// Collectives of the plugin gloo: the algorithm of all_reduce by size and number of ranks, and tags. The conformance
// cases check the results of every collective; tests/group/operations_test.cpp checks them in groups of 1 to 5 ranks.
#include <cstring>

#include "gloo_test.hpp"
#include "support/reference.hpp"

namespace backplane::test {
namespace {

// The limits of `auto` (README.md), in bytes.
constexpr uint64_t kSentDirectly = 128 << 10;  // by one rank to all others
constexpr uint64_t kReducedByBcube = 1 << 20;

#ifdef __SANITIZE_THREAD__  // it records an event per element
constexpr uint64_t kCounts[] = {1, 7, 1023, 20'011};
#else
constexpr uint64_t kCounts[] = {1, 7, 1023, 65537};
#endif
constexpr uint64_t kSegments =
    300'001;  // times the number of ranks: floats for which gloo sends each rank's part in two segments

template <typename T>
bp_op collective(uint32_t kind, uint64_t& seq) {
  bp_op op = make_op(kind);
  op.dtype = std::is_same_v<T, float> ? BP_F32 : (sizeof(T) == 1 ? BP_I8 : BP_U64);
  op.seq = seq++;
  op.flags = BP_OP_SYNC;
  return op;
}

template <typename T>
void check_all_reduce(Agent& agent, int32_t rank, int32_t world, uint64_t count, uint64_t& seq) {
  for (const bool in_place : {false, true}) {
    std::vector<T> in = data_of<T>(rank, count);
    std::vector<T> out(count);
    bp_op op = collective<T>(BP_ALL_REDUCE, seq);
    op.input = span(in);
    op.output = in_place ? span(in) : span(out);
    expect_done(agent, op);
    EXPECT_EQ(in_place ? in : out, sum_of<T>(world, count));
    if (!in_place) {
      EXPECT_EQ(in, data_of<T>(rank, count));
    }
  }
}

template <typename T>
void check_reduce(Agent& agent, int32_t rank, int32_t world, int32_t root, uint64_t count, uint64_t& seq) {
  for (const bool in_place : {false, true}) {
    std::vector<T> in = data_of<T>(rank, count);
    std::vector<T> out(rank == root ? count : 0);
    bp_op op = collective<T>(BP_REDUCE, seq);
    op.root = root;
    op.input = span(in);
    if (rank == root) op.output = in_place ? span(in) : span(out);
    expect_done(agent, op);
    if (rank == root) {
      EXPECT_EQ(in_place ? in : out, sum_of<T>(world, count));
    }
    if (rank != root || !in_place) {
      EXPECT_EQ(in, data_of<T>(rank, count));
    }
  }
}

template <typename T>
void check_broadcast(Agent& agent, int32_t rank, int32_t root, uint64_t count, uint64_t& seq) {
  std::vector<T> data = data_of<T>(rank, count);
  bp_op op = collective<T>(BP_BROADCAST, seq);
  op.root = root;
  if (rank == root) op.input = span(data);
  op.output = span(data);
  expect_done(agent, op);
  EXPECT_EQ(data, data_of<T>(root, count));
}

std::string ranks_name(const testing::TestParamInfo<int32_t>& info) { return "ranks_" + std::to_string(info.param); }

// bcube is for powers of two. Each world size adds a step.
class Reducing : public testing::TestWithParam<int32_t> {
 protected:
  int32_t world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Reducing, testing::Values(2, 3, 4, 5, 8), ranks_name);

TEST_P(Reducing, IsCorrectWithEachAlgorithm) {
  for (const std::string algorithm : {"ring", "bcube", "direct"}) {
    const auto body = [this, &algorithm](Agent& agent, int32_t rank) {
      uint64_t seq = 0;
      for (const uint64_t count : kCounts) check_all_reduce<uint64_t>(agent, rank, world(), count, seq);
      if (algorithm == "direct") return;  // sends everything in one message
      check_all_reduce<float>(agent, rank, world(), kSegments * static_cast<uint64_t>(world()), seq);
    };
    on_group(world(), body, {{"algorithm", algorithm}});
  }
}

// The largest size of each algorithm, and one element more.
TEST_P(Reducing, IsCorrectAtTheLimitsOfAuto) {
  on_group(world(), [this](Agent& agent, int32_t rank) {
    uint64_t seq = 0;
    const uint64_t direct = kSentDirectly / static_cast<uint64_t>(world() - 1);
    for (const uint64_t more : {0, 1}) {
      check_all_reduce<int8_t>(agent, rank, world(), direct + more, seq);
      check_all_reduce<uint64_t>(agent, rank, world(), kReducedByBcube / sizeof(uint64_t) + more, seq);
    }
  });
}

TEST_P(Reducing, ReduceInSeveralSegments) {
  on_group(world(), [this](Agent& agent, int32_t rank) {
    uint64_t seq = 0;
    for (const int32_t root : {0, world() - 1}) {
      check_reduce<float>(agent, rank, world(), root, kSegments * static_cast<uint64_t>(world()), seq);
    }
  });
}

// The order does not matter with two summands.
class Rounding : public Reducing {};
INSTANTIATE_TEST_SUITE_P(Worlds, Rounding, testing::Values(3, 4, 5, 8), ranks_name);

// Sums of floats depend on the order, which must be the same on all ranks.
TEST_P(Rounding, IsIdenticalOnAllRanksWithEachAlgorithm) {
  for (const char* algorithm : {"ring", "bcube", "direct"}) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{1000}, uint64_t{70000}}) {
      std::vector<std::vector<float>> results(static_cast<size_t>(world()));
      const auto body = [&results, count](Agent& agent, int32_t rank) {
        std::vector<float>& data = results[static_cast<size_t>(rank)];
        for (uint64_t i = 0; i < count; ++i) {
          data.push_back(1.0F / static_cast<float>(i + 3 + static_cast<uint64_t>(rank) * 1000));
        }
        bp_op op = make_op(BP_ALL_REDUCE, BP_F32);
        op.input = op.output = span(data);
        expect_done(agent, op);
      };
      on_group(world(), body, {{"algorithm", algorithm}});
      for (const std::vector<float>& result : results) {
        EXPECT_EQ(std::memcmp(result.data(), results[0].data(), count * sizeof(float)), 0)
            << algorithm << " of " << count;
      }
    }
  }
}

// gloo's tags have 32 bits, two of which name the algorithm of an all_reduce.
TEST(Collective, SurvivesWraparoundOfTags) {
  constexpr int32_t kRanks = 3;
  on_group(kRanks, [](Agent& agent, int32_t rank) {
    for (const uint64_t last : {UINT64_C(0x3fffffff), UINT64_C(0xffffffff)}) {
      for (uint64_t seq = last - 5; seq <= last + 5;) {
        check_all_reduce<uint64_t>(agent, rank, kRanks, 7, seq);  // kDirect
        check_broadcast<uint64_t>(agent, rank, 2, 7, seq);
        check_all_reduce<uint64_t>(agent, rank, kRanks, 20'011, seq);  // kRing
        check_reduce<uint64_t>(agent, rank, kRanks, 1, 7, seq);
      }
    }
  });
}

}  // namespace
}  // namespace backplane::test
