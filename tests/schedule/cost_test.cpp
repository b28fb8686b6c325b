// SPDX-License-Identifier: Apache-2.0
//
// No schedule exceeds the published cost of its algorithm. With p ranks and n elements as in the row:
//
//   messages, elements   of the busiest rank: per round the larger of sent and received
//   depth                rounds of the longest chain of dependent messages
//
// lg is log2 rounded up, chunk is n / p rounded up: the papers take n to be divisible by p.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "schedule/collective_case.hpp"
#include "schedule/cost.hpp"
#include "schedule/schedule.hpp"
#include "schedule/simulator.hpp"

namespace backplane::core::testing {
namespace {

struct Sizes {
  uint64_t p, n;
  uint64_t lg() const { return static_cast<uint64_t>(std::bit_width(p - 1)); }
  uint64_t chunk() const { return (n + p - 1) / p; }
  uint64_t folded() const { return std::has_single_bit(p) ? lg() : lg() + 1; }
};
using Formula = uint64_t (*)(const Sizes&);

struct Published {
  uint32_t kind;
  Algorithm algorithm;
  const char* source;
  Formula messages, elements, depth;
};

constexpr const char* kThakur = "Thakur, Rabenseifner, Gropp, Optimization of collective communication in MPICH, 2005";
constexpr const char* kBruck = "Bruck et al., Efficient algorithms for all-to-all communications, 1997";
constexpr const char* kPatarasuk = "Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms, 2009";
constexpr const char* kHensgen = "Hensgen, Finkel, Manber, Two algorithms for barrier synchronization, 1988";
constexpr const char* kHillis = "Hillis, Steele, Data parallel algorithms, 1986";
constexpr const char* kDirect = "one message for each block";

uint64_t zero(const Sizes&) { return 0; }
uint64_t one(const Sizes& s) { return s.p > 1 ? 1 : 0; }
uint64_t lg(const Sizes& s) { return s.lg(); }
uint64_t lg_n(const Sizes& s) { return s.lg() * s.n; }
uint64_t folded(const Sizes& s) { return s.folded(); }
uint64_t folded_n(const Sizes& s) { return s.folded() * s.n; }
uint64_t others(const Sizes& s) { return s.p - 1; }
uint64_t others_n(const Sizes& s) { return (s.p - 1) * s.n; }
uint64_t twice_others(const Sizes& s) { return 2 * (s.p - 1); }
uint64_t twice_others_chunk(const Sizes& s) { return 2 * (s.p - 1) * s.chunk(); }

const Published kPublished[] = {
    {BP_BARRIER, Algorithm::kDissemination, kHensgen, lg, zero, lg},
    {BP_BROADCAST, Algorithm::kBinomial, kThakur, lg, lg_n, lg},
    {BP_BROADCAST, Algorithm::kRing, kThakur, [](const Sizes& s) { return s.lg() + s.p - 1; }, twice_others_chunk,
     [](const Sizes& s) { return s.lg() + s.p - 1; }},
    {BP_REDUCE, Algorithm::kBinomial, kThakur, lg, lg_n, lg},
    {BP_REDUCE, Algorithm::kRing, kPatarasuk, twice_others, twice_others_chunk,
     [](const Sizes& s) { return s.p <= 16 ? s.p : 2 * (s.p - 1); }},
    {BP_ALL_REDUCE, Algorithm::kRecursiveDoubling, kThakur, folded, folded_n, folded},
    {BP_ALL_REDUCE, Algorithm::kRing, kPatarasuk, twice_others, twice_others_chunk, twice_others},
    {BP_GATHER, Algorithm::kBinomial, kThakur, lg, others_n, lg},
    {BP_GATHER, Algorithm::kLinear, kDirect, others, others_n, one},
    {BP_SCATTER, Algorithm::kBinomial, kThakur, lg, others_n, lg},
    {BP_SCATTER, Algorithm::kLinear, kDirect, others, others_n, one},
    {BP_ALL_GATHER, Algorithm::kBruck, kBruck, lg, others_n, lg},
    {BP_ALL_GATHER, Algorithm::kRing, kThakur, others, others_n, others},
    {BP_REDUCE_SCATTER, Algorithm::kRing, kPatarasuk, others, others_n, others},
    {BP_REDUCE_SCATTER, Algorithm::kPairwise, kThakur, others, others_n, others},
    {BP_ALL_TO_ALL, Algorithm::kPairwise, kThakur, others, others_n, others},
    {BP_ALL_TO_ALL, Algorithm::kBruck, kBruck, lg, [](const Sizes& s) { return s.lg() * (s.p / 2) * s.n; }, lg},
    {BP_SCAN, Algorithm::kRecursiveDoubling, kHillis, lg, lg_n, lg},
    {BP_EXSCAN, Algorithm::kRecursiveDoubling, kHillis, lg, lg_n, lg},
};

class EveryPublishedCost : public ::testing::TestWithParam<Published> {};
INSTANTIATE_TEST_SUITE_P(, EveryPublishedCost, ::testing::ValuesIn(kPublished), [](const auto& info) {
  return name_of_kind(info.param.kind) + "_" + std::string(name_of(info.param.algorithm));
});

TEST_P(EveryPublishedCost, IsNotExceeded) {
  const Published& published = GetParam();
  for (int32_t world_size = 1; world_size <= 64; ++world_size)
    for (const uint64_t count : {1, is_cut(published.kind) ? 101 : 2}) {
      const Shape shape{.kind = published.kind, .world_size = world_size, .root = world_size / 3, .count = count};
      const Traffic traffic = run_and_check(published.algorithm, shape);
      const Sizes sizes{static_cast<uint64_t>(world_size), count};
      ASSERT_LE(traffic.messages, published.messages(sizes)) << published.source << ", p = " << world_size;
      ASSERT_LE(traffic.elements, published.elements(sizes)) << published.source << ", p = " << world_size;
      ASSERT_LE(traffic.depth, published.depth(sizes)) << published.source << ", p = " << world_size;
    }
}

// cost_of is the actual cost of the schedules if n is divisible by p. Ring schedules that omit chunks that a rank
// already has may be cheaper.
TEST_P(EveryPublishedCost, IsTheCostThatTheChoiceUses) {
  const Published& published = GetParam();
  for (int32_t world_size = 2; world_size <= 64; ++world_size) {
    const Shape shape{.kind = published.kind,
                      .world_size = world_size,
                      .count = is_cut(published.kind) ? 2u * static_cast<uint64_t>(world_size) : 1};
    const Traffic traffic = run_and_check(published.algorithm, shape);
    const Cost cost = cost_of(published.algorithm, CollectiveCase(shape).spec(0));
    const bool may_be_cheaper = published.kind == BP_BROADCAST || published.algorithm == Algorithm::kBruck ||
                                published.algorithm == Algorithm::kRecursiveDoubling;
    EXPECT_LE(static_cast<double>(traffic.messages), cost.messages) << world_size;
    EXPECT_LE(static_cast<double>(traffic.elements), cost.bytes * 1.0001) << world_size;
    if (may_be_cheaper) continue;
    EXPECT_EQ(static_cast<double>(traffic.messages), cost.messages) << world_size;
    EXPECT_NEAR(static_cast<double>(traffic.elements), cost.bytes, cost.bytes * 0.0001) << world_size;
  }
}

TEST(PublishedCosts, NameEveryAlgorithm) {
  for (const uint32_t kind : collective_kinds()) {
    if (is_varying(kind)) continue;  // the same schedules with other sizes
    size_t named = 0;
    for (const Published& published : kPublished)
      if (published.kind == kind) ++named;
    EXPECT_EQ(named, algorithms_for(kind).size()) << name_of_kind(kind);
  }
}

}  // namespace
}  // namespace backplane::core::testing
