// SPDX-License-Identifier: Apache-2.0
#include "topology.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "layout.hpp"
#include "process.hpp"

namespace {
std::atomic<int> bindings = 0;
}

// Replaces the C library's function for the libraries of this program.
extern "C" [[gnu::visibility("default")]] int sched_setaffinity(pid_t pid, size_t size,
                                                                const cpu_set_t* mask) noexcept {
  ++bindings;
  return static_cast<int>(::syscall(SYS_sched_setaffinity, pid, size, mask));
}

namespace backplane::shm::test {
namespace {

Processors processors(std::initializer_list<int> numbers) {
  Processors mask{};
  for (const int number : numbers) mask[static_cast<size_t>(number) / 64] |= UINT64_C(1) << (number % 64);
  return mask;
}

// Two packages of two nodes, a cache per two cores, two processors per core: 32 processors.
constexpr const char* kLarge = "package:2 numa:2 l3:2 core:2 pu:2";

#define SKIP_WITHOUT_HWLOC(topology) \
  if ((topology).locality_of(processors({0})) == Locality{}) GTEST_SKIP() << "built without hwloc"

TEST(Topology, LocatesAProcessor) {
  const Topology large(kLarge);
  SKIP_WITHOUT_HWLOC(large);
  EXPECT_EQ(large.locality_of(processors({0})), (Locality{1, 1, 1}));
  EXPECT_EQ(large.locality_of(processors({3})), (Locality{1, 1, 1}));
  EXPECT_EQ(large.locality_of(processors({4})), (Locality{1, 1, 2}));
  EXPECT_EQ(large.locality_of(processors({8})), (Locality{1, 2, 3}));
  EXPECT_EQ(large.locality_of(processors({31})), (Locality{2, 4, 8}));
}

// Detection must not move the thread.
TEST(Topology, DetectionDoesNotMoveTheThread) {
  const Topology large(kLarge);
  SKIP_WITHOUT_HWLOC(large);
  const int before = bindings;
  Topology{nullptr};
  EXPECT_EQ(bindings, before);
}

TEST(Topology, SeveralLocalitiesAreUnknown) {
  const Topology large(kLarge);
  SKIP_WITHOUT_HWLOC(large);
  EXPECT_EQ(large.locality_of(processors({0, 1, 2})), (Locality{1, 1, 1}));
  EXPECT_EQ(large.locality_of(processors({0, 4})), (Locality{1, 1, 0}));
  EXPECT_EQ(large.locality_of(processors({4, 8})), (Locality{1, 0, 0}));
  EXPECT_EQ(large.locality_of(processors({8, 16})), Locality{});
  EXPECT_EQ(large.locality_of(processors({0, 32})), Locality{});  // there is no processor 32
  EXPECT_EQ(large.locality_of(Processors{}), Locality{});
}

TEST(Topology, ToleratesMissingLevels) {
  const Topology small("pu:2");
  EXPECT_EQ(small.locality_of(processors({0})).cache, 0U);
  EXPECT_EQ(Topology("nonsense").locality_of(processors({0})), Locality{});
  Topology::of_host().locality_of(usable_cpus());
  EXPECT_EQ(&Topology::of_host(), &Topology::of_host());
}

TEST(Topology, FindsTheSecondLevelCache) {
  const Topology host("package:1 l3:1(size=32MB) l2:2(size=1048576) core:1 pu:2");
  SKIP_WITHOUT_HWLOC(host);
  EXPECT_EQ(host.second_level_cache(), UINT64_C(1) << 20);
  EXPECT_EQ(Topology("pu:2").second_level_cache(), 0U);
}

TEST(Staging, FollowsTheCachesOfAmd) {
  EXPECT_EQ(staging_for(true, UINT64_C(1) << 20), UINT64_C(2) << 20);
  EXPECT_EQ(staging_for(true, UINT64_C(512) << 10), UINT64_C(1) << 20);
  EXPECT_EQ(staging_for(true, 0), UINT64_C(2) << 20);
  EXPECT_EQ(staging_for(false, UINT64_C(2) << 20), 0U);
}

TEST(Staging, DividesItAmongThePeers) {
  constexpr uint64_t kMiB = UINT64_C(1) << 20;
  EXPECT_EQ(Staging(2 * kMiB, 2).ring, 2 * kMiB);
  EXPECT_EQ(Staging(2 * kMiB, 2).slots, 32U);
  EXPECT_EQ(Staging(2 * kMiB, 4).ring, kMiB / 2);
  EXPECT_EQ(Staging(2 * kMiB, kMaxRanks).ring, kMinRing);
  EXPECT_EQ(Staging(Staging::kLeast, kMaxRanks).slots, kSteps);
}

// By default the slots of all ranks take 16 MiB or the least, and the rings of a rank what its slots take or the least.
TEST(Staging, DefaultsAreBounded) {
  for (int32_t ranks = 2; ranks <= kMaxRanks; ++ranks) {
    const auto n = static_cast<uint64_t>(ranks);
    for (const uint64_t wanted : {UINT64_C(0), UINT64_C(1'000'000), UINT64_C(2) << 20, UINT64_C(1) << 40}) {
      const uint64_t bytes = Staging::limited(wanted, ranks);
      ASSERT_TRUE(Staging::is_valid(bytes)) << wanted << ", " << ranks << " ranks";
      const Staging staging(bytes, ranks);
      ASSERT_EQ(staging.slots % kSteps, 0U);
      ASSERT_LE(bytes, Staging::kMostByDefault);
      ASSERT_LE(n * staging.slots * kSlotSize, std::max(Staging::kMostSlots, n * Staging::kLeast));
      ASSERT_LE((n - 1) * staging.ring, std::max(bytes, (n - 1) * kMinRing));
      ASSERT_GE(staging.ring, 2 * kPiece);
    }
  }
}

TEST(Staging, RejectsWhatNoRankPublishes) {
  for (const uint64_t bytes : {UINT64_C(0), Staging::kLeast / 2, Staging::kLeast + 1, 2 * Staging::kMost, ~UINT64_C(0)})
    EXPECT_FALSE(Staging::is_valid(bytes)) << bytes;
}

using Order = std::vector<int32_t>;

TEST(ReadingOrder, IsCyclicIfNothingIsKnown) {
  const std::vector<Locality> localities(4);
  EXPECT_EQ(reading_order(0, localities), (Order{1, 2, 3}));
  EXPECT_EQ(reading_order(2, localities), (Order{3, 0, 1}));
  EXPECT_EQ(reading_order(3, localities), (Order{0, 1, 2}));
  EXPECT_EQ(reading_order(0, std::vector<Locality>(1)), Order{});
}

TEST(ReadingOrder, StartsWithTheNearest) {
  // Ranks alternating between two packages, with two nodes of two caches each.
  std::vector<Locality> localities;
  for (uint32_t rank = 0; rank < 16; ++rank) {
    const uint32_t package = rank % 2;
    const uint32_t node = package * 2 + rank / 2 % 2;
    localities.push_back({package + 1, node + 1, node * 2 + rank / 4 % 2 + 1});
  }
  EXPECT_EQ(reading_order(0, localities), (Order{8, 4, 12, 2, 6, 10, 14, 1, 3, 5, 7, 9, 11, 13, 15}));
  EXPECT_EQ(reading_order(8, localities), (Order{0, 12, 4, 6, 10, 14, 2, 3, 5, 7, 9, 11, 13, 15, 1}));
}

// Each other rank once, and no rank is first for many more ranks than another.
TEST(ReadingOrder, ReachesAllAndSpreadsTheLoad) {
  for (uint32_t caches = 1; caches <= 4; ++caches) {
    std::vector<Locality> localities;
    for (uint32_t rank = 0; rank < 12; ++rank) localities.push_back({1, rank % caches / 2 + 1, rank % caches + 1});
    for (size_t position = 0; position < 11; ++position) {
      std::vector<int> readers(12);
      for (int32_t rank = 0; rank < 12; ++rank) {
        Order order = reading_order(rank, localities);
        ++readers[static_cast<size_t>(order[position])];
        order.push_back(rank);
        std::sort(order.begin(), order.end());
        Order all(12);
        std::iota(all.begin(), all.end(), 0);
        ASSERT_EQ(order, all);
      }
      EXPECT_LE(*std::max_element(readers.begin(), readers.end()), 3) << caches << " caches, position " << position;
    }
  }
}

TEST(Spread, DescribesKnownLevels) {
  EXPECT_EQ(describe_spread({{1, 1, 1}, {1, 1, 2}, {2, 2, 3}}), "2 memory nodes, 3 caches");
  EXPECT_EQ(describe_spread({{1, 1, 1}, {1, 1, 0}}), "1 memory node");
  EXPECT_EQ(describe_spread({{1, 0, 1}, {1, 0, 1}}), "1 cache");
  EXPECT_EQ(describe_spread({{}, {}}), "");
}

}  // namespace
}  // namespace backplane::shm::test
