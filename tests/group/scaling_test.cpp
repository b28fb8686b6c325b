// SPDX-License-Identifier: Apache-2.0
//
// avg and premul_sum, for all dtypes: a backend that has them of its own, shm, gives the bits of the core's completion,
// which is what inproc's ranks run.
#include <cstring>
#include <random>
#include <vector>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

using Bytes = std::vector<std::byte>;

// Where a rank's buffers lie.
enum class Where { kPlain, kInPlace, kAllocated, kAllocatedInPlace, kMixed };

struct Case {
  uint32_t kind;
  uint32_t dtype;
  uint32_t reduce_op;
  uint64_t count;  // of elements of a block

  uint64_t element() const { return bp_dtype_size(dtype); }
  bool scatters() const { return kind == BP_REDUCE_SCATTER || kind == BP_REDUCE_SCATTERV; }
  // Blocks of reduce_scatterv, by rank.
  uint64_t block(int rank) const { return kind == BP_REDUCE_SCATTERV ? count + static_cast<uint64_t>(rank) : count; }
  uint64_t blocks_before(int rank) const {
    uint64_t sum = 0;
    for (int i = 0; i < rank; ++i) sum += block(i);
    return sum;
  }
};

// Random bits: numbers of all sizes and, in the small formats, often infinities and NaN. Seeds 1 and up. Sums of two
// are the same in either order, and sums of three equal ones in any: then the schedule does not show in the bits.
Bytes random_elements(const Case& c, uint64_t count, int rank, int ranks) {
  std::mt19937 random(ranks == 2 ? static_cast<uint32_t>(rank) + 1 : 1);
  Bytes bytes(count * c.element());
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(c.dtype == BP_BOOL ? random() & 1 : random() & 255);
  return bytes;
}

// `size` bytes, in memory of the group's or in ordinary memory.
class Place {
 public:
  Place(ProcessGroup& group, uint64_t size, bool allocated) : plain_(allocated ? 0 : size) {
    if (allocated) own_ = group.allocate<std::byte>(size);
    data_ = allocated ? own_.data() : plain_.data();
  }
  std::byte* data() const { return data_; }

 private:
  Memory<std::byte> own_;
  Bytes plain_;
  std::byte* data_ = nullptr;
};

// What this rank ends with.
Bytes result(ProcessGroup& group, const Case& c, Where where) {
  const int rank = group.rank();
  const int ranks = group.world_size();
  const bool in_place = where == Where::kInPlace || where == Where::kAllocatedInPlace;
  const bool allocated = where == Where::kAllocated || where == Where::kAllocatedInPlace;
  const bool mixed = where == Where::kMixed && rank % 2 == 0;
  const uint64_t in_count = c.scatters() ? c.blocks_before(ranks) : c.count;
  const bool has_output = c.kind != BP_REDUCE || rank == ranks - 1;
  const uint64_t out_count = !has_output ? 0 : c.block(rank);
  const Bytes given = random_elements(c, in_count, rank, ranks);
  const Place in(group, given.size(), allocated || mixed);
  const Place out(group, out_count * c.element(), allocated);
  std::memcpy(in.data(), given.data(), given.size());
  std::byte* const to = !in_place ? out.data() : in.data() + (c.scatters() ? c.blocks_before(rank) * c.element() : 0);

  const Bytes scalar = random_elements(c, 1, rank, ranks);
  std::vector<uint64_t> counts;
  for (int i = 0; i < ranks; ++i) counts.push_back(c.block(i));
  bp_op op = {};
  op.struct_size = sizeof op;
  op.kind = c.kind;
  op.dtype = c.dtype;
  op.reduce_op = c.reduce_op;
  op.root = c.kind == BP_REDUCE ? ranks - 1 : 0;
  op.scalar = c.reduce_op == BP_PREMUL_SUM ? scalar.data() : nullptr;
  op.input = {in.data(), in_count, BP_HOST, 0};
  op.output = {has_output ? to : nullptr, out_count, BP_HOST, 0};
  if (c.kind == BP_REDUCE_SCATTERV) op.in_counts = counts.data();
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(bp_group_run(group.get(), &op, &err), BP_OK) << err.text;
  EXPECT_TRUE(in_place || std::memcmp(in.data(), given.data(), given.size()) == 0) << "the input was changed";
  return has_output ? Bytes(to, to + out_count * c.element()) : Bytes();
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const uint32_t kind : {BP_ALL_REDUCE, BP_REDUCE, BP_REDUCE_SCATTER, BP_REDUCE_SCATTERV})
    for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype)
      for (const uint32_t reduce_op : {BP_AVG, BP_PREMUL_SUM})
        for (const uint64_t count : {UINT64_C(1), UINT64_C(700), UINT64_C(40'001)})
          if (dtype != BP_BOOL || reduce_op != BP_AVG) all.push_back({kind, dtype, reduce_op, count});
  return all;
}

class Scaling : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Scaling, testing::Values(1, 2, 3));

TEST_P(Scaling, GivesTheBitsOfTheCore) {
  const int ranks = GetParam();
  std::vector<std::vector<Bytes>> expected(static_cast<size_t>(ranks));  // by rank and case
  test::in_group("inproc", ranks, [&expected](ProcessGroup& group) {
    for (const Case& c : cases()) {
      expected[static_cast<size_t>(group.rank())].push_back(result(group, c, Where::kPlain));
    }
  });
  in_group("shm", ranks, [&expected](ProcessGroup& group) {
    const std::vector<Bytes>& mine = expected[static_cast<size_t>(group.rank())];
    size_t i = 0;
    for (const Case& c : cases()) {
      for (const Where where :
           {Where::kPlain, Where::kInPlace, Where::kAllocated, Where::kAllocatedInPlace, Where::kMixed}) {
        ASSERT_TRUE(result(group, c, where) == mine[i])
            << "kind " << c.kind << " dtype " << c.dtype << " reduce_op " << c.reduce_op << " count " << c.count
            << " where " << static_cast<int>(where);
      }
      ++i;
    }
  });
}

}  // namespace
}  // namespace backplane::test
