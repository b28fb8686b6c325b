// SPDX-License-Identifier: Apache-2.0
#include "topology.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "process.hpp"

namespace {
std::atomic<int> bindings = 0;
}

// In the C library's stead, for the libraries of this program.
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

// Two packages of two nodes each, a cache for two cores, two processors in each core: 32 processors.
constexpr const char* kLarge = "package:2 numa:2 l3:2 core:2 pu:2";

#define SKIP_WITHOUT_HWLOC(topology) \
  if ((topology).site_of(processors({0})) == Site{}) GTEST_SKIP() << "built without hwloc"

TEST(Topology, KnowsWhereOneProcessorIs) {
  const Topology large(kLarge);
  SKIP_WITHOUT_HWLOC(large);
  EXPECT_EQ(large.site_of(processors({0})), (Site{1, 1, 1}));
  EXPECT_EQ(large.site_of(processors({3})), (Site{1, 1, 1}));
  EXPECT_EQ(large.site_of(processors({4})), (Site{1, 1, 2}));
  EXPECT_EQ(large.site_of(processors({8})), (Site{1, 2, 3}));
  EXPECT_EQ(large.site_of(processors({31})), (Site{2, 4, 8}));
}

// The program's thread stays where it is, and on what it has in its caches.
TEST(Topology, IsFoundOutWithoutMovingTheThread) {
  const Topology large(kLarge);
  SKIP_WITHOUT_HWLOC(large);
  const int before = bindings;
  Topology{nullptr};
  EXPECT_EQ(bindings, before);
}

TEST(Topology, WhoMayRunInSeveralIsInNone) {
  const Topology large(kLarge);
  SKIP_WITHOUT_HWLOC(large);
  EXPECT_EQ(large.site_of(processors({0, 1, 2})), (Site{1, 1, 1}));
  EXPECT_EQ(large.site_of(processors({0, 4})), (Site{1, 1, 0}));
  EXPECT_EQ(large.site_of(processors({4, 8})), (Site{1, 0, 0}));
  EXPECT_EQ(large.site_of(processors({8, 16})), Site{});
  EXPECT_EQ(large.site_of(processors({0, 32})), Site{});  // there is no such processor
  EXPECT_EQ(large.site_of(Processors{}), Site{});
}

TEST(Topology, DoesWithoutWhatIsNotThere) {
  const Topology small("pu:2");
  EXPECT_EQ(small.site_of(processors({0})).cache, 0U);
  EXPECT_EQ(Topology("nonsense").site_of(processors({0})), Site{});
  Topology::of_host().site_of(usable_cpus());
  EXPECT_EQ(&Topology::of_host(), &Topology::of_host());
}

using Order = std::vector<int32_t>;

TEST(ReadingOrder, IsARoundOfAllIfNothingIsKnown) {
  const std::vector<Site> sites(4);
  EXPECT_EQ(reading_order(0, sites), (Order{1, 2, 3}));
  EXPECT_EQ(reading_order(2, sites), (Order{3, 0, 1}));
  EXPECT_EQ(reading_order(3, sites), (Order{0, 1, 2}));
  EXPECT_EQ(reading_order(0, std::vector<Site>(1)), Order{});
}

TEST(ReadingOrder, BeginsWithTheNearest) {
  // Ranks dealt out to two packages in turn, with two nodes of two caches each.
  std::vector<Site> sites;
  for (uint32_t rank = 0; rank < 16; ++rank) {
    const uint32_t package = rank % 2;
    const uint32_t node = package * 2 + rank / 2 % 2;
    sites.push_back({package + 1, node + 1, node * 2 + rank / 4 % 2 + 1});
  }
  EXPECT_EQ(reading_order(0, sites), (Order{8, 4, 12, 2, 6, 10, 14, 1, 3, 5, 7, 9, 11, 13, 15}));
  EXPECT_EQ(reading_order(8, sites), (Order{0, 12, 4, 6, 10, 14, 2, 3, 5, 7, 9, 11, 13, 15, 1}));
}

// Whatever is known: each other rank once, and no rank is read first by many more than another.
TEST(ReadingOrder, ReachesAllAndSpreadsThem) {
  for (uint32_t caches = 1; caches <= 4; ++caches) {
    std::vector<Site> sites;
    for (uint32_t rank = 0; rank < 12; ++rank) sites.push_back({1, rank % caches / 2 + 1, rank % caches + 1});
    for (size_t place = 0; place < 11; ++place) {
      std::vector<int> readers(12);
      for (int32_t rank = 0; rank < 12; ++rank) {
        Order order = reading_order(rank, sites);
        ++readers[static_cast<size_t>(order[place])];
        order.push_back(rank);
        std::sort(order.begin(), order.end());
        Order all(12);
        std::iota(all.begin(), all.end(), 0);
        ASSERT_EQ(order, all);
      }
      EXPECT_LE(*std::max_element(readers.begin(), readers.end()), 3) << caches << " caches, place " << place;
    }
  }
}

TEST(Spread, IsToldAsFarAsItIsKnown) {
  EXPECT_EQ(spread({{1, 1, 1}, {1, 1, 2}, {2, 2, 3}}), "2 memory nodes, 3 caches");
  EXPECT_EQ(spread({{1, 1, 1}, {1, 1, 0}}), "1 memory node");
  EXPECT_EQ(spread({{1, 0, 1}, {1, 0, 1}}), "1 cache");
  EXPECT_EQ(spread({{}, {}}), "");
}

}  // namespace
}  // namespace backplane::shm::test
