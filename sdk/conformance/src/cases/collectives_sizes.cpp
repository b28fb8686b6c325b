// SPDX-License-Identifier: Apache-2.0
//
// Large buffers, and worlds larger than most users check.
#include <algorithm>
#include <initializer_list>

#include "collectives_call.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// Elements whose expected results are computed fast: integers and f32, if declared.
std::pair<uint32_t, uint32_t> draw_fast_type(Rank& rank, const bp_capability& capability) {
  const uint64_t word = rank.shared_random()();
  const uint32_t dtypes[] = {BP_U8, BP_I32, BP_F32, BP_I64};
  for (uint64_t i = 0; i < 4; ++i) {
    const uint32_t dtype = dtypes[(word + i) % 4];
    if (declares(capability, dtype, usual_reduce_op(capability, dtype))) {
      return {dtype, usual_reduce_op(capability, dtype)};
    }
  }
  const uint32_t usual = usual_dtype(capability);
  return {usual, usual_reduce_op(capability, usual)};
}

// Each native collective whose larger side has about `bytes` bytes on each rank: exactly as many, one element less and
// one more. With more than `most` bytes, one of these as the seed has it.
void run_sizes(Rank& rank, std::initializer_list<uint64_t> all_bytes, uint64_t most = UINT64_MAX) {
  Collectives group(rank);
  uint64_t number = 0;
  for (const uint32_t op : group.native_ops()) {
    if (op == BP_BARRIER) continue;
    for (const uint64_t bytes : all_bytes) {
      const uint64_t only = rank.shared_random()() % 3;
      for (const uint64_t more : {0, 1, 2}) {
        if (bytes > most && more != only) continue;
        Shape shape = {.op = op};
        std::tie(shape.dtype, shape.reduce_op) = draw_fast_type(rank, *group.native(op));
        shape = group.draw(shape);
        shape.uneven = false;
        const uint64_t blocks = has_blocks(op) ? static_cast<uint64_t>(rank.size()) : 1;
        shape.count = bytes / blocks / bp_dtype_size(shape.dtype) + more - 1;
        group.run(shape);
        ++number;
      }
    }
  }
  if (number == 0) rank.skip("no collective with data is native");
}

void exact_sizes(Rank& rank) { run_sizes(rank, {kMiB, 4 * kMiB}); }
void larger_sizes(Rank& rank) { run_sizes(rank, {16 * kMiB, 64 * kMiB}, 16 * kMiB); }

// Each native collective with each root, dtype and reduce op, in place and not, with even and uneven blocks.
void every_combination(Rank& rank) {
  Collectives group(rank);
  for (const uint32_t op : group.native_ops()) {
    if (op == BP_BARRIER) continue;
    for (const auto& [dtype, reduce_op] : declared_types(*group.native(op))) {
      for (const uint64_t count : {1, 2, 8, 33, 250}) {
        Shape shape = {.op = op, .dtype = dtype, .reduce_op = reduce_op, .count = count};
        for (shape.root = 0; shape.root < (rooted(op) ? rank.size() : 1); ++shape.root) {
          for (uint64_t which = 0; which < 8; ++which) {
            shape.in_place = (which & 1) != 0;
            shape.uneven = (which & 2) != 0;
            shape.sync = (which & 4) != 0;
            shape.skew = natural_alignment(dtype) * (++shape.name % 4);
            if ((shape.in_place && !may_be_in_place(op)) || (shape.uneven && !has_counts(op))) continue;
            group.run(shape);
          }
        }
      }
    }
  }
}

// Each native collective with each root, and counts, dtypes and reduce ops as the seed has them.
void in_larger_worlds(Rank& rank) {
  Collectives group(rank);
  for (const uint32_t op : group.native_ops()) {
    const bp_capability& capability = *group.native(op);
    const auto types = declared_types(capability);
    for (int32_t root = 0; root < rank.size(); ++root) {
      Shape shape = {.op = op};
      if (op != BP_BARRIER) {
        std::tie(shape.dtype, shape.reduce_op) = types[rank.shared_random()() % types.size()];
      }
      shape = group.draw(shape);
      shape.count = rank.shared_random()() % 80;
      if (rooted(op)) shape.root = root;
      group.run(shape);
    }
  }
}

}  // namespace

std::vector<Case> collectives_size_cases() {
  return {
      Case("exact-sizes", "results are right at 1 MiB and 4 MiB, and one element less and more", exact_sizes,
           {.ops = 0}, {.deadline = 60 * kSecond}),
      Case("larger-sizes", "results are right at 16 MiB, and one element less and more, and near 64 MiB", larger_sizes,
           {.ops = 0}, {.level = Level::kThorough, .deadline = 300 * kSecond}),
      Case("every-combination",
           "results are right for each root, dtype and reduce op, in place and not, with even and uneven blocks",
           every_combination, {.ops = 0}, {.level = Level::kThorough, .deadline = 240 * kSecond}),
      Case("larger-worlds", "collectives are right in worlds of 5 and 8 ranks", in_larger_worlds, {.ops = 0},
           {.worlds = {5, 8}, .deadline = 30 * kSecond}),
  };
}

}  // namespace backplane::conformance
