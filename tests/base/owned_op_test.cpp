// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/owned_op.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace backplane::base {
namespace {

bp_op initialised(uint32_t kind) {
  bp_op op;
  bp_op_init(&op, kind);
  return op;
}

TEST(OwnedOpTest, KeepsListsAndScalarOfTheCaller) {
  constexpr int32_t kRanks = 3;
  auto counts = std::make_unique<std::vector<uint64_t>>(std::vector<uint64_t>{1, 2, 3});
  auto displs = std::make_unique<std::vector<uint64_t>>(std::vector<uint64_t>{0, 10, 20});
  auto factor = std::make_unique<double>(2.5);
  bp_op given = initialised(BP_ALL_TO_ALLV);
  given.dtype = BP_F64;
  given.in_counts = counts->data();
  given.out_counts = counts->data();
  given.out_displs = displs->data();
  given.scalar = factor.get();
  const OwnedOp owned(given, kRanks);
  const std::vector<uint64_t> expected_counts = *counts;
  const std::vector<uint64_t> expected_displs = *displs;
  std::fill(counts->begin(), counts->end(), 77);
  std::fill(displs->begin(), displs->end(), 77);
  *factor = 77;
  const auto list = [](const uint64_t* begin) { return std::vector<uint64_t>(begin, begin + kRanks); };
  EXPECT_EQ(list(owned.get().in_counts), expected_counts);
  EXPECT_EQ(owned.get().in_displs, nullptr);
  EXPECT_EQ(list(owned.get().out_counts), expected_counts);
  EXPECT_EQ(list(owned.get().out_displs), expected_displs);
  EXPECT_EQ(*static_cast<const double*>(owned.get().scalar), 2.5);
}

TEST(OwnedOpTest, IsNotWaitedForInSubmit) {
  bp_op given = initialised(BP_SEND);
  given.flags = BP_OP_SYNC | UINT64_C(2);
  EXPECT_EQ(OwnedOp(given, 2).get().flags, UINT64_C(2));
}

TEST(OwnedOpTest, ClaimsNoFieldsBeyondItsOwn) {
  struct Later {
    bp_op op;
    uint64_t appended;
  } later = {initialised(BP_SEND), 4711};
  later.op.struct_size = sizeof later;
  EXPECT_EQ(known_part(later.op).struct_size, sizeof(bp_op));
  EXPECT_EQ(OwnedOp(later.op, 2).get().struct_size, sizeof(bp_op));
}

TEST(OwnedOpTest, ReadsNoFieldsThatTheCallerDoesNotHave) {
  std::vector<std::byte> earlier(offsetof(bp_op, result));  // the caller does not own the bytes behind it
  bp_op op = initialised(BP_RECV);
  op.struct_size = static_cast<uint32_t>(earlier.size());
  std::memcpy(earlier.data(), &op, earlier.size());
  const bp_op known = known_part(*reinterpret_cast<const bp_op*>(earlier.data()));
  EXPECT_EQ(known.struct_size, earlier.size());
  EXPECT_EQ(known.kind, uint32_t{BP_RECV});
  EXPECT_EQ(known.result, nullptr);
}

// A new field of bp_op must be set there as well.
TEST(OpInitTest, SetsEveryByte) {
  bp_op first;
  bp_op second;
  std::memset(&first, 0x00, sizeof first);
  std::memset(&second, 0xFF, sizeof second);
  bp_op_init(&first, BP_BARRIER);
  bp_op_init(&second, BP_BARRIER);
  EXPECT_EQ(std::memcmp(&first, &second, sizeof first), 0);
  EXPECT_EQ(first.struct_size, sizeof(bp_op));
  EXPECT_EQ(first.timeout_ns, BP_INHERIT_TIMEOUT);
}

}  // namespace
}  // namespace backplane::base
