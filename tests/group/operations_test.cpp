// SPDX-License-Identifier: Apache-2.0
//
// Every collective, on every backend, for world sizes 1 to 8: all roots, counts from nothing to many chunks, in place
// and not, and the input left alone.
#include <complex>
#include <cstring>
#include <numeric>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

using OperationsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, OperationsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Range(1, 9)),
                         backend_test_name);

const std::vector<size_t> kCounts = {0, 1, 7, 1000, 70001};

// Element i of rank r's data: small integers, so that sums are exact in every type.
template <typename T>
T value(int rank, size_t i) {
  return static_cast<T>((rank * 3 + static_cast<int>(i % 7)) % 11);
}
template <typename T>
std::vector<T> data_of(int rank, size_t count) {
  std::vector<T> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = value<T>(rank, i);
  return data;
}
template <typename T>
std::vector<T> sum_of(int world, size_t count) {
  std::vector<T> sum(count);
  for (int rank = 0; rank < world; ++rank) {
    for (size_t i = 0; i < count; ++i) sum[i] = static_cast<T>(sum[i] + value<T>(rank, i));
  }
  return sum;
}

TEST_P(OperationsTest, Barrier) {
  std::atomic<int> arrived = 0;
  in_group([this, &arrived](ProcessGroup& group) {
    for (int round = 1; round <= 20; ++round) {
      arrived.fetch_add(1);
      group.barrier();
      EXPECT_GE(arrived.load(), round * world_size());
    }
  });
}

TEST_P(OperationsTest, Broadcast) {
  in_group([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root) {
      for (const size_t count : kCounts) {
        auto data = data_of<int32_t>(group.rank(), count);
        group.broadcast(data, root);
        EXPECT_EQ(data, data_of<int32_t>(root, count)) << "root " << root;
      }
    }
  });
}

TEST_P(OperationsTest, AllReduce) {
  in_group([](ProcessGroup& group) {
    for (const size_t count : kCounts) {
      const auto in = data_of<float>(group.rank(), count);
      const auto before = in;
      std::vector<float> out(count, -1);
      group.all_reduce(in, out);
      EXPECT_EQ(out, sum_of<float>(group.world_size(), count));
      EXPECT_EQ(in, before);
      auto both = in;
      group.all_reduce(both);
      EXPECT_EQ(both, out);
    }
  });
}

using LargeOperationsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, LargeOperationsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2, 3, 5)),
                         backend_test_name);

// Enough that the core's ring goes around in slices.
TEST_P(LargeOperationsTest, AllReduce) {
  in_group([](ProcessGroup& group) {
    const size_t count = static_cast<size_t>(group.world_size()) * 340'001 + 7;
    const auto in = data_of<float>(group.rank(), count);
    std::vector<float> out(count, -1);
    group.all_reduce(in, out);
    EXPECT_TRUE(out == sum_of<float>(group.world_size(), count));
    auto both = in;
    group.all_reduce(both);
    EXPECT_TRUE(both == out);
  });
}

template <typename T>
void expect_sum(ProcessGroup& group) {
  auto data = data_of<T>(group.rank(), 13);
  group.all_reduce(data);
  EXPECT_EQ(data, sum_of<T>(group.world_size(), 13)) << "dtype " << static_cast<int>(dtype_of<T>);
}

TEST_P(OperationsTest, AllReduceOfEveryArithmeticType) {
  in_group([](ProcessGroup& group) {
    expect_sum<int8_t>(group);
    expect_sum<uint8_t>(group);
    expect_sum<int16_t>(group);
    expect_sum<uint16_t>(group);
    expect_sum<int32_t>(group);
    expect_sum<uint32_t>(group);
    expect_sum<int64_t>(group);
    expect_sum<uint64_t>(group);
    expect_sum<float>(group);
    expect_sum<double>(group);
    std::vector<std::complex<float>> c(3, {1, static_cast<float>(group.rank())});
    group.all_reduce(c);
    const auto world = static_cast<float>(group.world_size());
    EXPECT_EQ(c[2], std::complex<float>(world, world * (world - 1) / 2));
    std::vector<Half> halves(5, Half{0x3c00});  // 1.0
    group.all_reduce(halves);
    const uint16_t sums[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800};
    EXPECT_EQ(halves[4].bits, sums[group.world_size()]);
  });
}

TEST_P(OperationsTest, EveryReduceOperation) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    const auto reduced = [&group](ReduceOp op, auto mine) {
      decltype(mine) out{};
      group.all_reduce(one(mine), one(out), op);
      return out;
    };
    EXPECT_EQ(reduced(ReduceOp::kMax, group.rank()), world - 1);
    EXPECT_EQ(reduced(ReduceOp::kMin, double(group.rank())), 0.0);
    EXPECT_EQ(reduced(ReduceOp::kProd, int64_t(2)), int64_t(1) << world);
    EXPECT_EQ(reduced(ReduceOp::kAvg, float(group.rank())), float(world - 1) / 2);
    EXPECT_EQ(reduced(ReduceOp::kBitOr, uint32_t(1) << group.rank()), (uint32_t(1) << world) - 1);
    EXPECT_EQ(reduced(ReduceOp::kBitAnd, ~(uint32_t(1) << group.rank())), ~((uint32_t(1) << world) - 1));
    EXPECT_EQ(reduced(ReduceOp::kBitXor, uint8_t(1)), world % 2);
    const float half = 0.5F;
    float mine = 4;
    float out = 0;
    group.all_reduce_premul_sum(one(mine), one(out), half);
    EXPECT_EQ(out, 2.0F * static_cast<float>(world));
  });
}

// Sums whose rounding depends on the order: every rank must have rounded alike.
TEST_P(OperationsTest, AllReduceGivesTheSameBitsEverywhere) {
  in_group([](ProcessGroup& group) {
    for (const size_t count : {size_t{5}, size_t{50000}}) {
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i)
        data[i] = 1.0F / static_cast<float>(1 + group.rank() * 7 + static_cast<int>(i));
      group.all_reduce(data);
      const std::string bytes(reinterpret_cast<const char*>(data.data()), count * sizeof(float));
      for (const std::string& other : group.all_gather_object(bytes)) EXPECT_TRUE(other == bytes);
    }
  });
}

TEST_P(OperationsTest, Reduce) {
  in_group([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root) {
      for (const size_t count : kCounts) {
        const auto in = data_of<int64_t>(group.rank(), count);
        const auto before = in;
        std::vector<int64_t> out(group.rank() == root ? count : 0);
        group.reduce(in, out, root);
        if (group.rank() == root) {
          EXPECT_EQ(out, sum_of<int64_t>(group.world_size(), count));
        }
        EXPECT_EQ(in, before);
      }
      auto both = data_of<int64_t>(group.rank(), 9);
      const auto before = both;
      group.reduce(both, group.rank() == root ? Buffer(both) : Buffer(), root);
      EXPECT_EQ(both, group.rank() == root ? sum_of<int64_t>(group.world_size(), 9) : before);
    }
  });
}

// All ranks' data one after the other.
std::vector<int32_t> concatenation(int world, size_t count) {
  std::vector<int32_t> all;
  for (int rank = 0; rank < world; ++rank) {
    const auto part = data_of<int32_t>(rank, count);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST_P(OperationsTest, GatherAndScatter) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    for (int root = 0; root < world; ++root) {
      const bool at_root = group.rank() == root;
      for (const size_t count : kCounts) {
        const auto mine = data_of<int32_t>(group.rank(), count);
        std::vector<int32_t> all(at_root ? count * static_cast<size_t>(world) : 0);
        group.gather(mine, all, root);
        if (at_root) {
          EXPECT_EQ(all, concatenation(world, count));
        }
        std::vector<int32_t> back(count, -1);
        group.scatter(all, back, root);
        EXPECT_EQ(back, mine);
      }
    }
  });
}

TEST_P(OperationsTest, AllGather) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    for (const size_t count : kCounts) {
      const auto mine = data_of<int32_t>(group.rank(), count);
      std::vector<int32_t> all(count * static_cast<size_t>(world));
      group.all_gather(mine, all);
      EXPECT_EQ(all, concatenation(world, count));
      std::vector<int32_t> in_place(all.size());
      const size_t own = count * static_cast<size_t>(group.rank());
      std::copy(mine.begin(), mine.end(), in_place.begin() + static_cast<std::ptrdiff_t>(own));
      group.all_gather(std::span(in_place).subspan(own, count), in_place);
      EXPECT_EQ(in_place, all);
    }
  });
}

TEST_P(OperationsTest, ReduceScatter) {
  in_group([](ProcessGroup& group) {
    const auto world = static_cast<size_t>(group.world_size());
    for (const size_t count : kCounts) {
      const auto in = data_of<float>(group.rank(), count * world);
      const auto before = in;
      std::vector<float> out(count);
      group.reduce_scatter(in, out);
      const auto sum = sum_of<float>(group.world_size(), count * world);
      const auto begin = sum.begin() + static_cast<std::ptrdiff_t>(count * static_cast<size_t>(group.rank()));
      EXPECT_TRUE(std::equal(out.begin(), out.end(), begin));
      EXPECT_EQ(in, before);
    }
  });
}

TEST_P(OperationsTest, AllToAll) {
  in_group([](ProcessGroup& group) {
    const auto world = static_cast<size_t>(group.world_size());
    for (const size_t count : kCounts) {
      std::vector<int32_t> in(count * world);
      for (size_t i = 0; i < in.size(); ++i) in[i] = group.rank() * 1000000 + static_cast<int32_t>(i);
      std::vector<int32_t> expected(count * world);
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t from = i / std::max<size_t>(count, 1);
        expected[i] = static_cast<int32_t>(from * 1000000 + static_cast<size_t>(group.rank()) * count + i % count);
      }
      std::vector<int32_t> out(in.size());
      group.all_to_all(in, out);
      EXPECT_EQ(out, expected);
      group.all_to_all(in, in);
      EXPECT_EQ(in, expected);
    }
  });
}

// Rank r contributes (r * 5) % 7 elements; some ranks none.
size_t uneven(int rank) { return static_cast<size_t>(rank * 5 % 7); }

Blocks uneven_blocks(int world) {
  Blocks blocks;
  for (int rank = 0; rank < world; ++rank) blocks.counts.push_back(uneven(rank));
  return blocks;
}

TEST_P(OperationsTest, VariantsWithUnevenBlocks) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    const Blocks blocks = uneven_blocks(world);
    std::vector<int32_t> all;
    for (int rank = 0; rank < world; ++rank) {
      for (const int32_t v : data_of<int32_t>(rank, uneven(rank))) all.push_back(v);
    }
    const auto mine = data_of<int32_t>(group.rank(), uneven(group.rank()));
    std::vector<int32_t> gathered(all.size());
    group.all_gatherv(mine, gathered, blocks);
    EXPECT_EQ(gathered, all);
    const int root = world - 1;
    const bool at_root = group.rank() == root;
    std::vector<int32_t> at(at_root ? all.size() : 0);
    group.gatherv(mine, at, blocks, root);
    if (at_root) {
      EXPECT_EQ(at, all);
    }
    std::vector<int32_t> back(mine.size());
    group.scatterv(at, blocks, back, root);
    EXPECT_EQ(back, mine);
    std::vector<int32_t> reduced(mine.size());
    group.reduce_scatterv(all, blocks, reduced);
    for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(reduced[i], mine[i] * world);
  });
}

TEST_P(OperationsTest, GathervWithGaps) {
  in_group([](ProcessGroup& group) {
    const auto world = static_cast<size_t>(group.world_size());
    Blocks blocks;
    for (size_t r = 0; r < world; ++r) {
      blocks.counts.push_back(2);
      blocks.displs.push_back((world - 1 - r) * 3);  // backwards, with a hole after each block
    }
    const std::vector<int32_t> mine(2, group.rank());
    std::vector<int32_t> out(world * 3, -1);
    group.all_gatherv(mine, out, blocks);
    for (size_t r = 0; r < world; ++r) {
      EXPECT_EQ(out[blocks.displs[r]], static_cast<int32_t>(r));
      EXPECT_EQ(out[blocks.displs[r] + 1], static_cast<int32_t>(r));
      EXPECT_EQ(out[blocks.displs[r] + 2], -1);
    }
  });
}

TEST_P(OperationsTest, AllToAllvWithUnevenBlocks) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    const auto count = [](int from, int to) { return static_cast<uint64_t>((from + 2 * to) % 4); };
    Blocks in_blocks;
    Blocks out_blocks;
    std::vector<int32_t> in;
    std::vector<int32_t> expected;
    for (int other = 0; other < world; ++other) {
      in_blocks.counts.push_back(count(group.rank(), other));
      out_blocks.counts.push_back(count(other, group.rank()));
      in.insert(in.end(), in_blocks.counts.back(), group.rank() * 100 + other);
      expected.insert(expected.end(), out_blocks.counts.back(), other * 100 + group.rank());
    }
    std::vector<int32_t> out(expected.size());
    group.all_to_allv(in, in_blocks, out, out_blocks);
    EXPECT_EQ(out, expected);
  });
}

}  // namespace
}  // namespace backplane::test
