// SPDX-License-Identifier: Apache-2.0
//
// Collectives with a count and a displacement for each rank (`Blocks`), over each backend.
#include <functional>

#include "support/groups.hpp"
#include "support/reference.hpp"

namespace backplane::test {
namespace {

// As in operations_test.cpp.
using UnevenBlocksTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, UnevenBlocksTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 3, 5)),
                         backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, UnevenBlocksTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(5)),
                         backend_test_name);

// Blocks of different counts: without displacements, adjacent; with displacements, the last block first and one unused
// element before each.
struct Layout {
  Layout(std::vector<uint64_t> counts, bool is_scattered) {
    displs.resize(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      const size_t block = is_scattered ? counts.size() - 1 - i : i;
      if (is_scattered) ++total;
      displs[block] = total;
      total += counts[block];
    }
    if (is_scattered) blocks.displs = displs;
    blocks.counts = std::move(counts);
  }
  std::vector<int32_t> untouched() const { return std::vector<int32_t>(total, -1); }
  // block(r) are the elements of block r.
  std::vector<int32_t> filled(const std::function<std::vector<int32_t>(int rank)>& block) const {
    std::vector<int32_t> all = untouched();
    for (size_t i = 0; i < displs.size(); ++i) {
      const std::vector<int32_t> data = block(static_cast<int>(i));
      EXPECT_EQ(data.size(), blocks.counts[i]);
      std::copy(data.begin(), data.end(), all.begin() + static_cast<std::ptrdiff_t>(displs[i]));
    }
    return all;
  }

  Blocks blocks;
  std::vector<uint64_t> displs;
  uint64_t total = 0;  // elements
};

constexpr uint64_t kApart = 1'000'000;  // data for rank r begins with element r * kApart

// Runs check(scale, is_scattered) for few and for many elements in each layout.
void in_each_layout(const std::function<void(uint64_t, bool)>& check) {
  for (const uint64_t scale : {1, 9'000}) {
    for (const bool is_scattered : {false, true}) check(scale, is_scattered);
  }
}

// With two or more blocks, one is empty.
std::vector<uint64_t> uneven_counts(int world, uint64_t scale) {
  std::vector<uint64_t> counts;
  for (int rank = 0; rank < world; ++rank) counts.push_back(static_cast<uint64_t>((rank * 5 + 2) % 7) * scale);
  return counts;
}

TEST_P(UnevenBlocksTest, GatherScatterAndTheirLikes) {
  in_group([](ProcessGroup& group) {
    in_each_layout([&group](uint64_t scale, bool is_scattered) {
      const Layout layout(uneven_counts(group.world_size(), scale), is_scattered);
      const auto count = [&layout](int rank) { return layout.blocks.counts[static_cast<size_t>(rank)]; };
      const auto all = layout.filled([&count](int rank) { return data_of<int32_t>(rank, count(rank)); });
      const auto mine = data_of<int32_t>(group.rank(), count(group.rank()));
      auto gathered = layout.untouched();
      group.all_gatherv(mine, gathered, layout.blocks);
      EXPECT_EQ(gathered, all);
      for (int root = 0; root < group.world_size(); ++root) {
        const bool at_root = group.rank() == root;
        gathered = at_root ? layout.untouched() : std::vector<int32_t>();
        group.gatherv(mine, gathered, at_root ? layout.blocks : Blocks(), root);
        EXPECT_EQ(gathered, at_root ? all : std::vector<int32_t>()) << "root " << root;
        std::vector<int32_t> back(mine.size(), -1);
        group.scatterv(gathered, at_root ? layout.blocks : Blocks(), back, root);
        EXPECT_EQ(back, mine) << "root " << root;
      }
      const auto first = [](int to) { return static_cast<uint64_t>(to) * kApart; };
      const auto in = layout.filled([&](int to) { return data_of<int32_t>(group.rank(), count(to), first(to)); });
      std::vector<int32_t> reduced(mine.size(), -1);
      group.reduce_scatterv(in, layout.blocks, reduced);
      EXPECT_EQ(reduced, sum_of<int32_t>(group.world_size(), mine.size(), first(group.rank())));
    });
  });
}

TEST_P(UnevenBlocksTest, AllToAll) {
  in_group([](ProcessGroup& group) {
    in_each_layout([&group](uint64_t scale, bool is_scattered) {
      const auto data = [scale](int from, int to) {
        return data_of<int32_t>(from, static_cast<uint64_t>((from + 2 * to + 1) % 4) * scale,
                                static_cast<uint64_t>(to) * kApart);
      };
      std::vector<uint64_t> in_counts;
      std::vector<uint64_t> out_counts;
      for (int other = 0; other < group.world_size(); ++other) {
        in_counts.push_back(data(group.rank(), other).size());
        out_counts.push_back(data(other, group.rank()).size());
      }
      const Layout in_layout(std::move(in_counts), is_scattered);
      const Layout out_layout(std::move(out_counts), is_scattered);
      const auto in = in_layout.filled([&](int to) { return data(group.rank(), to); });
      auto out = out_layout.untouched();
      group.all_to_allv(in, in_layout.blocks, out, out_layout.blocks);
      EXPECT_EQ(out, out_layout.filled([&](int from) { return data(from, group.rank()); }));
    });
  });
}

}  // namespace
}  // namespace backplane::test
