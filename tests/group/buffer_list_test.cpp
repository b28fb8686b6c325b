// SPDX-License-Identifier: Apache-2.0
//
// Collectives with lists of W buffers, synchronous and asynchronous, with ranks that pass one buffer.
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using Values = std::vector<int32_t>;

// `count` buffers of `size` elements, with gaps between them or adjacent.
struct BufferList {
  BufferList(size_t count, size_t size, bool are_adjacent) : memory(count * (size + 3), -1) {
    for (size_t i = 0; i < count; ++i) {
      // With gaps, the last buffer is first in memory.
      int32_t* const data = memory.data() + (are_adjacent ? i * size : (count - 1 - i) * (size + 3));
      buffers.push_back({data, size, BP_HOST, 0});
    }
  }
  int32_t* at(size_t i) { return static_cast<int32_t*>(buffers[i].data); }
  Values memory;
  std::vector<bp_buffer> buffers;
};

class BufferListTest : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static void perform(ProcessGroup& group, const bp_op& op, const bp_buffer* in, const bp_buffer* out, bool async) {
    if (!async) {
      detail::call(bp_group_run_list, group.get(), &op, in, out, static_cast<bp_request**>(nullptr));
      return;
    }
    bp_request* request = nullptr;
    detail::call(bp_group_run_list, group.get(), &op, in, out, &request);
    detail::call(bp_request_wait, request, int64_t{BP_NO_TIMEOUT});
    bp_request_release(request);
  }
  static bp_op make(uint32_t kind, Values& in, Values& out) {
    bp_op op;
    bp_op_init(&op, kind);
    op.dtype = BP_I32;
    op.root = 1;
    op.input = {in.data(), in.size(), BP_HOST, 0};
    op.output = {out.data(), out.size(), BP_HOST, 0};
    return op;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, BufferListTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2, 3)),
                         backend_test_name);

constexpr size_t kSize = 5;

// The element that rank `from` sends to rank `to`.
int32_t value_of(int from, size_t to, size_t i) { return from * 1000 + static_cast<int32_t>(to * 100 + i); }

TEST_P(BufferListTest, AllToAll) {
  in_group(std::get<0>(GetParam()), std::get<1>(GetParam()), [](ProcessGroup& group) {
    const auto world = static_cast<size_t>(group.world_size());
    for (const bool async : {false, true}) {
      for (const bool are_adjacent : {false, true}) {
        BufferList in(world, kSize, are_adjacent);
        BufferList out(world, kSize, are_adjacent);
        for (size_t to = 0; to < world; ++to)
          for (size_t i = 0; i < kSize; ++i) in.at(to)[i] = value_of(group.rank(), to, i);
        Values none;
        perform(group, make(BP_ALL_TO_ALL, none, none), in.buffers.data(), out.buffers.data(), async);
        for (size_t from = 0; from < world; ++from)
          for (size_t i = 0; i < kSize; ++i)
            EXPECT_EQ(out.at(from)[i], value_of(static_cast<int>(from), static_cast<size_t>(group.rank()), i));
      }
    }
  });
}

TEST_P(BufferListTest, GatherAndScatterWithRanksThatPassOneBuffer) {
  in_group(std::get<0>(GetParam()), std::get<1>(GetParam()), [](ProcessGroup& group) {
    const auto world = static_cast<size_t>(group.world_size());
    for (const bool async : {false, true}) {
      Values mine(kSize, group.rank());
      BufferList all(group.rank() == 1 ? world : 1, kSize, false);
      Values none;
      bp_op op = make(BP_GATHER, mine, none);
      perform(group, op, nullptr, group.rank() == 1 ? all.buffers.data() : nullptr, async);
      for (size_t from = 0; group.rank() == 1 && from < world; ++from) {
        EXPECT_EQ(all.at(from)[kSize - 1], static_cast<int32_t>(from));
        EXPECT_EQ(all.at(from)[kSize], -1) << "written beyond a buffer";
      }
      Values back(kSize, -1);
      op = make(BP_SCATTER, none, back);
      perform(group, op, group.rank() == 1 ? all.buffers.data() : nullptr, nullptr, async);
      EXPECT_EQ(back, mine);
    }
  });
}

TEST_P(BufferListTest, AllGatherAndReduceScatterWithRanksThatPassOneBuffer) {
  in_group(std::get<0>(GetParam()), std::get<1>(GetParam()), [](ProcessGroup& group) {
    const auto world = static_cast<size_t>(group.world_size());
    for (const bool async : {false, true}) {
      Values mine(kSize, group.rank());
      BufferList all(world, kSize, false);
      Values whole(world * kSize, -1);
      const bool passes_list = group.rank() % 2 == 0;
      bp_op op = make(BP_ALL_GATHER, mine, whole);
      perform(group, op, nullptr, passes_list ? all.buffers.data() : nullptr, async);
      for (size_t from = 0; from < world; ++from) {
        EXPECT_EQ(passes_list ? all.at(from)[0] : whole[from * kSize], static_cast<int32_t>(from));
      }
      Values sum(kSize, -1);
      op = make(BP_REDUCE_SCATTER, whole, sum);
      perform(group, op, passes_list ? all.buffers.data() : nullptr, nullptr, async);
      EXPECT_EQ(sum, Values(kSize, group.rank() * group.world_size()));
    }
  });
}

TEST(BufferLists, RefusesInvalidCombinations) {
  in_group("inproc", 2, [](ProcessGroup& group) {
    BufferList list(2, kSize, false);
    BufferList uneven(2, kSize, false);
    uneven.buffers[1].count = kSize - 1;
    const auto status = [&group](uint32_t kind, const bp_buffer* in, const bp_buffer* out) {
      bp_op op;
      bp_op_init(&op, kind);
      op.dtype = BP_I32;
      return bp_group_run_list(group.get(), &op, in, out, nullptr, nullptr);
    };
    EXPECT_EQ(status(BP_ALL_REDUCE, list.buffers.data(), nullptr), BP_INVALID);
    EXPECT_EQ(status(BP_ALL_GATHER, list.buffers.data(), nullptr), BP_INVALID);
    EXPECT_EQ(status(BP_ALL_TO_ALL, list.buffers.data(), uneven.buffers.data()), BP_INVALID);
    EXPECT_EQ(status(1000, list.buffers.data(), nullptr), BP_INVALID);
    EXPECT_EQ(bp_group_run_list(group.get(), nullptr, nullptr, nullptr, nullptr, nullptr), BP_INVALID);
  });
}

}  // namespace
}  // namespace backplane::test
