// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of a backend with native reductions, shm. avg and premul_sum give the same bits as the core's schedules,
// over which inproc's ranks run; small floats the bits of f32 rounded once.
#include <cstring>
#include <random>
#include <vector>

#include "support/groups.hpp"
#include "support/rounded_once.hpp"

namespace backplane::test {
namespace {

using Bytes = std::vector<std::byte>;

// The memory of a rank's buffers.
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

// Random bits: numbers of all sizes and, in the small formats, often infinities and NaN. Seeds from 1. Sums of two are
// the same in either order, and sums of three equal ones in any, so that the bits do not depend on the schedule.
Bytes random_elements(const Case& c, uint64_t count, int rank, int ranks) {
  std::mt19937 random(ranks == 2 || is_small_float(c.dtype) ? static_cast<uint32_t>(rank) + 1 : 1);
  Bytes bytes(count * c.element());
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(c.dtype == BP_BOOL ? random() & 1 : random() & 255);
  return bytes;
}

// `size` bytes, in memory of the group or in ordinary memory.
class ScaledPlace {
 public:
  ScaledPlace(ProcessGroup& group, uint64_t size, bool allocated) : plain_(allocated ? 0 : size) {
    if (allocated) own_ = group.allocate<std::byte>(size);
    data_ = allocated ? own_.data() : plain_.data();
  }
  std::byte* data() const { return data_; }

 private:
  Memory<std::byte> own_;
  Bytes plain_;
  std::byte* data_ = nullptr;
};

// The result on this rank.
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
  const ScaledPlace in(group, given.size(), allocated || mixed);
  const ScaledPlace out(group, out_count * c.element(), allocated);
  std::memcpy(in.data(), given.data(), given.size());
  std::byte* const to = !in_place ? out.data() : in.data() + (c.scatters() ? c.blocks_before(rank) * c.element() : 0);

  const Bytes scalar = random_elements(c, 1, rank, ranks);
  std::vector<uint64_t> counts;
  for (int i = 0; i < ranks; ++i) counts.push_back(c.block(i));
  bp_op op;
  bp_op_init(&op, c.kind);
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
          if (!is_small_float(dtype) && (dtype != BP_BOOL || reduce_op != BP_AVG))
            all.push_back({kind, dtype, reduce_op, count});
  return all;
}

// So large that with two ranks the root reduces, and with more ranks each reduces a part. Smaller for many ranks, which
// take long.
std::vector<Case> small_float_cases(int ranks) {
  const uint64_t much = UINT64_C(70'001) / static_cast<uint64_t>(ranks <= 2 ? 1 : ranks);
  std::vector<uint32_t> kinds = {BP_ALL_REDUCE, BP_REDUCE_SCATTER};
  if (ranks <= 4) kinds.insert(kinds.end(), {BP_REDUCE, BP_REDUCE_SCATTERV});
  std::vector<Case> all;
  for (const uint32_t kind : kinds)
    for (const uint32_t dtype : {BP_F16, BP_BF16, BP_F8E4M3, BP_F8E5M2})
      for (const uint32_t reduce_op : {BP_SUM, BP_PROD, BP_AVG, BP_PREMUL_SUM})
        for (const uint64_t count : {UINT64_C(1), UINT64_C(700), much}) all.push_back({kind, dtype, reduce_op, count});
  return all;
}

// The expected result on this rank.
Bytes rounded_once(const Case& c, int rank, int ranks) {
  if (c.kind == BP_REDUCE && rank != ranks - 1) return {};
  if (ranks == 1 && (c.reduce_op == BP_SUM || c.reduce_op == BP_PROD)) return random_elements(c, c.block(0), 0, 1);
  std::vector<Bytes> data;
  std::vector<Bytes> factors;
  std::vector<const void*> inputs;
  std::vector<const void*> scalars;
  for (int from = 0; from < ranks; ++from) {
    data.push_back(random_elements(c, c.scatters() ? c.blocks_before(ranks) : c.count, from, ranks));
    factors.push_back(random_elements(c, 1, from, ranks));
    inputs.push_back(data.back().data() + (c.scatters() ? c.blocks_before(rank) * c.element() : 0));
    scalars.push_back(c.reduce_op == BP_PREMUL_SUM ? factors.back().data() : nullptr);
  }
  Bytes out(c.block(rank) * c.element());
  reduce_and_round_once(c.dtype, c.reduce_op, out.data(), inputs.data(), scalars.data(), inputs.size(), c.block(rank));
  return out;
}

constexpr Where kEverywhere[] = {Where::kPlain, Where::kInPlace, Where::kAllocated, Where::kAllocatedInPlace,
                                 Where::kMixed};

class Scaling : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Scaling, testing::Values(1, 2, 3));

TEST_P(Scaling, GivesTheSameBitsAsTheCore) {
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
      for (const Where where : kEverywhere) {
        ASSERT_TRUE(result(group, c, where) == mine[i])
            << "kind " << c.kind << " dtype " << c.dtype << " reduce_op " << c.reduce_op << " count " << c.count
            << " where " << static_cast<int>(where);
      }
      ++i;
    }
  });
}

class SmallFloats : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SmallFloats, testing::Values(1, 2, 3, 4, 8));

TEST_P(SmallFloats, AreRoundedOnce) {
  const int ranks = GetParam();
  in_group("shm", ranks, [ranks](ProcessGroup& group) {
    for (const Case& c : small_float_cases(ranks)) {
      const Bytes expected = rounded_once(c, group.rank(), ranks);
      for (const Where where : kEverywhere) {
        ASSERT_TRUE(result(group, c, where) == expected)
            << "kind " << c.kind << " dtype " << c.dtype << " reduce_op " << c.reduce_op << " count " << c.count
            << " where " << static_cast<int>(where);
      }
    }
  });
}

// One element of this rank.
template <class Format>
float all_reduced(ProcessGroup& group, uint32_t dtype, uint32_t reduce_op, float number) {
  typename Format::Bits data = Format::from_float(number);
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = dtype;
  op.reduce_op = reduce_op;
  op.input = op.output = {&data, 1, BP_HOST, 0};
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(bp_group_run(group.get(), &op, &err), BP_OK) << err.text;
  return Format::to_float(data);
}

// Also by the core's schedules, which send partial sums between ranks.
TEST(SmallFloats, AreTheSameOnAllRanks) {
  std::vector<Case> all;
  for (const uint32_t dtype : {BP_F16, BP_BF16})
    for (const uint32_t reduce_op : {BP_SUM, BP_AVG, BP_PREMUL_SUM})
      for (const uint64_t count : {UINT64_C(1), UINT64_C(70'001)})
        all.push_back({BP_ALL_REDUCE, dtype, reduce_op, count});
  for (const int ranks : {3, 5}) {
    std::vector<std::vector<Bytes>> results(static_cast<size_t>(ranks));  // by rank and case
    in_group("inproc", ranks, [&all, &results](ProcessGroup& group) {
      for (const Case& c : all) results[static_cast<size_t>(group.rank())].push_back(result(group, c, Where::kPlain));
      const float number = 60'000.0F / static_cast<float>(group.world_size());  // partial sums do not overflow
      EXPECT_EQ(all_reduced<core::F16>(group, BP_F16, BP_AVG, number), number);
    });
    for (const std::vector<Bytes>& of_rank : results) EXPECT_TRUE(of_rank == results[0]) << ranks << " ranks";
  }
}

// An average is finite even if the sum overflows, also if partial sums are sent in the dtype.
TEST(SmallFloats, AreDividedBeforeTheyAreRounded) {
  for (const char* const backend : {"inproc", "shm"}) {
    in_group(backend, 2, [](ProcessGroup& group) {
      EXPECT_EQ(all_reduced<core::F8E4M3>(group, BP_F8E4M3, BP_AVG, 300), 288);  // nearest to 300
      EXPECT_EQ(all_reduced<core::F16>(group, BP_F16, BP_AVG, 60000), 60000);
    });
  }
}

}  // namespace
}  // namespace backplane::test
