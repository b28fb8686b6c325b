// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/op_digest.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

namespace backplane::base {
namespace {

constexpr int32_t kRanks = 2;

bp_op all_reduce() {
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_F32;
  op.reduce_op = BP_SUM;
  op.input.count = op.output.count = 4;
  return op;
}

TEST(OpDigestTest, DiffersInEachParameterThatRanksShare) {
  const std::vector<uint64_t> equal = {4, 4}, unequal = {4, 3};
  const std::vector<std::function<void(bp_op&)>> changes = {
      [](bp_op&) {},
      [](bp_op& op) { op.kind = BP_REDUCE; },
      [](bp_op& op) { op.dtype = BP_I32; },
      [](bp_op& op) { op.reduce_op = BP_MAX; },
      [](bp_op& op) { op.root = 1; },
      [](bp_op& op) { op.input.count = 5; },
      [](bp_op& op) { op.kind = BP_BARRIER; },
      [](bp_op& op) { op.kind = BP_BROADCAST; },
      [](bp_op& op) { op.kind = BP_BROADCAST, op.output.count = 5; },
      [](bp_op& op) { op.kind = BP_ALL_TO_ALL; },
      [&](bp_op& op) { op.kind = BP_ALL_GATHERV, op.out_counts = equal.data(); },
      [&](bp_op& op) { op.kind = BP_ALL_GATHERV, op.out_counts = unequal.data(); },
      [&](bp_op& op) { op.kind = BP_REDUCE_SCATTERV, op.in_counts = unequal.data(); },
  };
  std::set<uint32_t> digests;
  for (const auto& change : changes) {
    bp_op op = all_reduce();
    change(op);
    digests.insert(digest_with_counts(op, kRanks).value());
  }
  EXPECT_EQ(digests.size(), changes.size());
}

// Backends keep some bits of the digest.
TEST(OpDigestTest, DiffersInItsLowBits) {
  const auto of_root = [](int32_t root) {
    bp_op op = all_reduce();
    op.root = root;
    return digest_of(op).value();
  };
  for (const int32_t root : {1, 255, 256, 1024, 65536}) EXPECT_NE(of_root(0) & 0xffff, of_root(root) & 0xffff) << root;
  bp_op other = all_reduce();
  other.input.count = 4 << 20;
  EXPECT_NE(digest_with_counts(other, kRanks).value() & 0xffff,
            digest_with_counts(all_reduce(), kRanks).value() & 0xffff);
}

TEST(OpDigestTest, CountsAreOptional) {
  bp_op other = all_reduce();
  other.input.count = 5;
  EXPECT_EQ(digest_of(other).value(), digest_of(all_reduce()).value());
  other.reduce_op = BP_MAX;
  EXPECT_NE(digest_of(other).value(), digest_of(all_reduce()).value());
}

TEST(OpDigestTest, IgnoresWhatDiffersBetweenRanks) {
  const std::vector<uint64_t> counts = {1, 2};
  bp_op mine = all_reduce(), theirs = all_reduce();
  theirs.seq = 7;
  theirs.timeout_ns = 1;
  theirs.flags = BP_OP_SYNC;
  EXPECT_EQ(digest_with_counts(mine, kRanks).value(), digest_with_counts(theirs, kRanks).value());
  for (const uint32_t kind : {BP_GATHERV, BP_SCATTERV, BP_ALL_TO_ALLV}) {
    mine.kind = theirs.kind = kind;
    theirs.input.count = 9;
    theirs.in_counts = theirs.out_counts = counts.data();
    EXPECT_EQ(digest_with_counts(mine, kRanks).value(), digest_with_counts(theirs, kRanks).value());
  }
  mine.kind = theirs.kind = BP_GATHER;
  theirs.input.count = mine.input.count;
  theirs.output.count = 8;  // at the root
  EXPECT_EQ(digest_with_counts(mine, kRanks).value(), digest_with_counts(theirs, kRanks).value());
}

}  // namespace
}  // namespace backplane::base
