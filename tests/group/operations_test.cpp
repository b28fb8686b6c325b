// SPDX-License-Identifier: Apache-2.0
//
// Every collective call of the C++ API over each backend, as documented in process_group.hpp: arguments, roots, blocks,
// in place and not, the input unchanged. Other tests cover native collectives by dtype, reduce operation, count and
// alignment (sdk/conformance/src/cases/collectives*.cpp), schedules for 1 to 64 ranks (tests/schedule), and arithmetic
// (tests/reduce).
#include <array>
#include <complex>
#include <cstring>
#include <functional>

#include "support/groups.hpp"
#include "support/reference.hpp"

namespace backplane::test {
namespace {

// A group of one rank; a single peer; not a power of two, so that schedules fold; a fold and a tree of several levels.
// tests/schedule checks other world sizes without a network.
const auto kOperationWorlds = testing::Values(1, 2, 3, 5);

// No elements; fewer bytes than the cost of a message, divisible only by world sizes 1 and 7; and so many that the core
// chooses a ring, gloo other algorithms, and shm many pieces.
constexpr uint64_t kOperationCounts[] = {0, 7, 70'001};

using OperationsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, OperationsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), kOperationWorlds), backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, OperationsTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(3, 4, 5)),
                         backend_test_name);

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
      for (const uint64_t count : kOperationCounts) {
        auto data = data_of<int32_t>(group.rank(), count);
        group.broadcast(data, root);
        EXPECT_EQ(data, data_of<int32_t>(root, count)) << "root " << root;
      }
    }
  });
}

TEST_P(OperationsTest, AllReduce) {
  in_group([](ProcessGroup& group) {
    for (const uint64_t count : kOperationCounts) {
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

// More than one slice of the core's ring, over the backends without a native all_reduce.
std::vector<std::string> backends_without_all_reduce() {
  std::vector<std::string> names = built_backends();
  std::erase_if(names, [](const std::string& name) { return name == "gloo" || name == "shm"; });
  return names;
}
using LargeOperationsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, LargeOperationsTest,
                         testing::Combine(testing::ValuesIn(backends_without_all_reduce()), testing::Values(2, 3, 5)),
                         backend_test_name);

TEST_P(LargeOperationsTest, AllReduce) {
  in_group([](ProcessGroup& group) {
    const uint64_t count = static_cast<uint64_t>(group.world_size()) * 340'001 + 7;
    const auto in = data_of<float>(group.rank(), count);
    std::vector<float> out(count, -1);
    group.all_reduce(in, out);
    EXPECT_TRUE(out == sum_of<float>(group.world_size(), count));
    auto both = in;
    group.all_reduce(both);
    EXPECT_TRUE(both == out);
  });
}

// Each C++ type reaches the backend as its dtype.
using TypedOperationsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, TypedOperationsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(3)), backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, TypedOperationsTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(3)),
                         backend_test_name);

template <Element T>
void expect_tripled(ProcessGroup& group, T single, T triple) {
  std::vector<T> data(5, single);
  group.all_reduce(data);
  for (const T& each : data) EXPECT_EQ(std::memcmp(&each, &triple, sizeof(T)), 0) << name_of(dtype_of<T>);
}

TEST_P(TypedOperationsTest, AllReduceOfEveryType) {
  in_group([](ProcessGroup& group) {
    expect_tripled<int8_t>(group, -4, -12);
    expect_tripled<uint8_t>(group, 80, 240);
    expect_tripled<int16_t>(group, -400, -1200);
    expect_tripled<uint16_t>(group, 20'000, 60'000);
    expect_tripled<int32_t>(group, -100'000, -300'000);
    expect_tripled<uint32_t>(group, 100'000, 300'000);
    expect_tripled<int64_t>(group, INT64_C(-1) << 40, INT64_C(-3) << 40);
    expect_tripled<uint64_t>(group, UINT64_C(1) << 40, UINT64_C(3) << 40);
    expect_tripled<float>(group, 0.5F, 1.5F);
    expect_tripled<double>(group, 0x1p300, 0x1.8p301);
    expect_tripled<std::complex<float>>(group, {1, -2}, {3, -6});
    expect_tripled<std::complex<double>>(group, {1, -2}, {3, -6});
    expect_tripled<Half>(group, {0x3c00}, {0x4200});  // 1 and 3, as below
    expect_tripled<BFloat16>(group, {0x3f80}, {0x4040});
    expect_tripled<Float8E4M3>(group, {0x38}, {0x44});
    expect_tripled<Float8E5M2>(group, {0x3c}, {0x42});
    std::array<bool, 3> flags = {false, group.rank() == 1, true};
    group.all_reduce(flags);
    EXPECT_EQ(flags, (std::array<bool, 3>{false, true, true}));
  });
}

TEST_P(OperationsTest, EveryReduceOperation) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    const auto reduced = [&group](ReduceOp op, auto mine) {
      decltype(mine) out{};
      group.all_reduce(as_buffer(mine), as_buffer(out), op);
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
    group.all_reduce_premul_sum(as_buffer(mine), as_buffer(out), half);
    EXPECT_EQ(out, 2.0F * static_cast<float>(world));
    const int32_t own = 5 + group.rank();
    int32_t least = -1;
    group.reduce(as_buffer(own), as_buffer(least), world - 1, ReduceOp::kMin);
    EXPECT_EQ(least, group.rank() == world - 1 ? 5 : -1);
    const std::vector<int32_t> of_each(static_cast<size_t>(world), own);
    int32_t most[] = {-1, -1};
    group.reduce_scatter(of_each, as_buffer(most[0]), ReduceOp::kMax);
    group.reduce_scatterv(of_each, {std::vector<uint64_t>(of_each.size(), 1)}, as_buffer(most[1]), ReduceOp::kMax);
    EXPECT_EQ(most[0], 4 + world);
    EXPECT_EQ(most[1], 4 + world);
  });
}

// More than two ranks, because sums of two are the same in either order.
using RoundingOperationsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, RoundingOperationsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(3, 5)),
                         backend_test_name);
INSTANTIATE_TEST_SUITE_P(Composites, RoundingOperationsTest,
                         testing::Combine(testing::ValuesIn(composite_backends()), testing::Values(5)),
                         backend_test_name);

// Sums whose rounding depends on the order: all ranks must round in the same order.
TEST_P(RoundingOperationsTest, AllReduceGivesTheSameBitsEverywhere) {
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
      const bool at_root = group.rank() == root;
      for (const uint64_t count : kOperationCounts) {
        const auto in = data_of<int64_t>(group.rank(), count);
        const auto before = in;
        const auto sum = sum_of<int64_t>(group.world_size(), count);
        std::vector<int64_t> out(at_root ? count : 0);
        group.reduce(in, out, root);
        EXPECT_EQ(out, at_root ? sum : std::vector<int64_t>()) << "root " << root;
        EXPECT_EQ(in, before);
        auto both = in;
        group.reduce(both, at_root ? Buffer(both) : Buffer(), root);
        EXPECT_EQ(both, at_root ? sum : before) << "root " << root;
      }
    }
  });
}

// Block `rank` of a buffer with blocks of `count` elements.
std::span<int32_t> block_in(std::vector<int32_t>& all, int rank, uint64_t count) {
  return std::span(all).subspan(static_cast<uint64_t>(rank) * count, count);
}

TEST_P(OperationsTest, GatherAndScatter) {
  in_group([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root) {
      const bool at_root = group.rank() == root;
      for (const uint64_t count : kOperationCounts) {
        const auto mine = data_of<int32_t>(group.rank(), count);
        const auto expected = at_root ? blocks_of_all<int32_t>(group.world_size(), count) : std::vector<int32_t>();
        std::vector<int32_t> all(expected.size(), -1);
        group.gather(mine, all, root);
        EXPECT_EQ(all, expected) << "root " << root;
        std::vector<int32_t> back(count, -1);
        group.scatter(all, back, root);
        EXPECT_EQ(back, mine) << "root " << root;
        // In place at the root.
        std::fill(all.begin(), all.end(), -1);
        if (at_root) std::copy(mine.begin(), mine.end(), block_in(all, root, count).begin());
        group.gather(at_root ? ConstBuffer(block_in(all, root, count)) : ConstBuffer(mine), all, root);
        EXPECT_EQ(all, expected) << "root " << root;
        std::fill(back.begin(), back.end(), -1);
        group.scatter(all, at_root ? Buffer(block_in(all, root, count)) : Buffer(back), root);
        EXPECT_TRUE(at_root || back == mine) << "root " << root;
        EXPECT_EQ(all, expected) << "root " << root;
        EXPECT_EQ(mine, data_of<int32_t>(group.rank(), count));
      }
    }
  });
}

TEST_P(OperationsTest, AllGather) {
  in_group([](ProcessGroup& group) {
    for (const uint64_t count : kOperationCounts) {
      const auto mine = data_of<int32_t>(group.rank(), count);
      const auto expected = blocks_of_all<int32_t>(group.world_size(), count);
      std::vector<int32_t> all(expected.size(), -1);
      group.all_gather(mine, all);
      EXPECT_EQ(all, expected);
      EXPECT_EQ(mine, data_of<int32_t>(group.rank(), count));
      std::vector<int32_t> in_place(expected.size(), -1);
      const std::span<int32_t> own = block_in(in_place, group.rank(), count);
      std::copy(mine.begin(), mine.end(), own.begin());
      group.all_gather(own, in_place);
      EXPECT_EQ(in_place, expected);
    }
  });
}

TEST_P(OperationsTest, Scan) {
  in_group([](ProcessGroup& group) {
    const auto scan = [&group](uint32_t kind, std::vector<int32_t>& in, std::vector<int32_t>& out) {
      bp_op op;
      bp_op_init(&op, kind);
      op.dtype = BP_I32;
      op.reduce_op = BP_SUM;
      op.input = {in.data(), in.size(), BP_HOST, 0};
      op.output = {out.data(), out.size(), BP_HOST, 0};
      detail::call(bp_group_run, group.get(), static_cast<const bp_op*>(&op));
    };
    for (const uint64_t count : kOperationCounts) {
      const auto mine = data_of<int32_t>(group.rank(), count);
      auto in = mine;
      std::vector<int32_t> out(count, -1);
      scan(BP_SCAN, in, out);
      EXPECT_EQ(out, sum_of<int32_t>(group.rank() + 1, count));
      EXPECT_EQ(in, mine);
      scan(BP_SCAN, in, in);
      EXPECT_EQ(in, out);
      const auto below = sum_of<int32_t>(group.rank(), count);
      in = mine;
      out.assign(count, -1);
      scan(BP_EXSCAN, in, out);
      EXPECT_EQ(out, group.rank() == 0 ? std::vector<int32_t>(count, -1) : below);
      EXPECT_EQ(in, mine);
      scan(BP_EXSCAN, in, in);
      EXPECT_EQ(in, group.rank() == 0 ? mine : below);
    }
  });
}

TEST_P(OperationsTest, ReduceScatter) {
  in_group([](ProcessGroup& group) {
    const auto world = static_cast<uint64_t>(group.world_size());
    for (const uint64_t count : kOperationCounts) {
      const auto in = data_of<int32_t>(group.rank(), count * world);
      const auto before = in;
      const auto expected = sum_of<int32_t>(group.world_size(), count, static_cast<uint64_t>(group.rank()) * count);
      std::vector<int32_t> out(count, -1);
      group.reduce_scatter(in, out);
      EXPECT_EQ(out, expected);
      EXPECT_EQ(in, before);
      auto both = in;
      const std::span<int32_t> own = block_in(both, group.rank(), count);
      group.reduce_scatter(both, own);
      EXPECT_TRUE(std::equal(own.begin(), own.end(), expected.begin()));
    }
  });
}

TEST_P(OperationsTest, AllToAll) {
  in_group([](ProcessGroup& group) {
    const auto world = static_cast<uint64_t>(group.world_size());
    for (const uint64_t count : kOperationCounts) {
      auto in = data_of<int32_t>(group.rank(), count * world);
      const auto before = in;
      const auto expected =
          blocks_of_all<int32_t>(group.world_size(), count, static_cast<uint64_t>(group.rank()) * count);
      std::vector<int32_t> out(in.size(), -1);
      group.all_to_all(in, out);
      EXPECT_EQ(out, expected);
      EXPECT_EQ(in, before);
      group.all_to_all(in, in);
      EXPECT_EQ(in, expected);
    }
  });
}

}  // namespace
}  // namespace backplane::test
