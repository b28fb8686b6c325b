// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <vector>

#include "../arithmetic.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// Calls each native collective that `wanted` accepts, modified by `vary`. Skips the case if there is none.
template <typename Wanted, typename Vary>
void for_each(Rank& rank, Collectives& group, const Wanted& wanted, const Vary& vary, const char* none) {
  uint64_t number = 0;
  for (const uint32_t op : group.native_ops()) {
    if (op == BP_BARRIER || !wanted(op)) continue;
    ++number;
    const bp_capability& capability = *group.native(op);
    Shape shape = usual_shape(capability, 0);
    shape.root = static_cast<int32_t>(number % static_cast<uint64_t>(rank.size()));
    vary(shape, capability);
  }
  if (number == 0) rank.skip(none);
}

bool any_op(uint32_t /*op*/) { return true; }

void in_place(Rank& rank) {
  Collectives group(rank);
  const auto vary = [&group](Shape shape, const bp_capability& /*capability*/) {
    shape.in_place = true;
    for (const uint64_t count : {1, 129, 5000, 70'001}) {
      shape.count = count;
      for (const bool uneven : {false, true}) {
        shape.uneven = uneven;
        ++shape.name;
        shape.sync = shape.name % 2 == 0;
        group.run(shape);
      }
    }
  };
  for_each(rank, group, may_be_in_place, vary, "no native collective may be in place");
}

// Buffers aligned to their element's size and no more.
void misaligned(Rank& rank) {
  Collectives group(rank);
  const auto vary = [&group](Shape shape, const bp_capability& capability) {
    for (const uint32_t dtype : {BP_U8, BP_F16, BP_I16, BP_F32, BP_F64, BP_C64, BP_C128, BP_F8E4M3}) {
      if (!declares(capability, dtype, usual_reduce_op(capability, dtype))) continue;
      shape.dtype = dtype;
      shape.reduce_op = usual_reduce_op(capability, dtype);
      shape.count = 1031;
      shape.skew = natural_alignment(dtype) * (shape.name % 2 == 0 ? 1 : 3);
      shape.in_place = shape.name % 3 == 2;
      ++shape.name;
      group.run(shape);
    }
  };
  for_each(rank, group, any_op, vary, "no collective is native");
}

void adjacent_buffers(Rank& rank) {
  Collectives group(rank);
  const auto vary = [&group](Shape shape, const bp_capability& /*capability*/) {
    shape.adjacent = true;
    for (const uint64_t count : {1, 64, 1009, 20'000}) {
      shape.count = count;
      ++shape.name;
      group.run(shape);
    }
  };
  for_each(
      rank, group, [](uint32_t op) { return op != BP_BROADCAST; }, vary, "no native collective has two buffers");
}

void uneven_counts(Rank& rank) {
  Collectives group(rank);
  const auto vary = [&group](Shape shape, const bp_capability& /*capability*/) {
    shape.uneven = true;
    for (const uint64_t count : {0, 1, 2, 3, 100, 1009, 30'000}) {
      for (int32_t turn = 0; turn < 5; ++turn) {  // each rank's block is empty once
        shape.count = count;
        shape.name = static_cast<uint64_t>(turn);
        shape.sync = turn % 2 == 0;
        group.run(shape);
      }
    }
  };
  for_each(rank, group, has_counts, vary, "no v-variant is native");
}

// Empty operations with NULL data between operations with data.
void zero_counts(Rank& rank) {
  Collectives group(rank);
  const auto vary = [&group](Shape shape, const bp_capability& /*capability*/) {
    for (const uint64_t count : {0, 3, 0, 0, 5, 0}) {
      shape.count = count;
      ++shape.name;
      shape.sync = shape.name % 2 == 0;
      group.run(shape);
    }
  };
  for_each(rank, group, any_op, vary, "no collective is native");
}

void input_unmodified(Rank& rank) {
  Collectives group(rank);
  const auto vary = [&group](Shape shape, const bp_capability& /*capability*/) {
    for (const uint64_t count : {1, 33, 2048, 100'000}) {
      shape.count = count;
      shape.uneven = true;
      ++shape.name;
      group.run(shape);
    }
  };
  for_each(rank, group, any_op, vary, "no collective is native");
}

// Bytes of each length from 0 to 64; elements of the usual dtype, and no multiple of a vector's width.
void guard_bytes(Rank& rank) {
  Collectives group(rank);
  std::vector<uint64_t> lengths(65);
  std::iota(lengths.begin(), lengths.end(), uint64_t{0});
  lengths.insert(lengths.end(), {1021, 4095, 4096, 4097});
  const auto vary = [&group, &lengths](const Shape& usual, const bp_capability& capability) {
    const auto run = [&group](Shape shape, uint64_t count) {
      shape = group.draw(shape);
      shape.count = count;
      group.run(shape);
    };
    Shape bytes = usual;
    bytes.dtype = BP_U8;
    bytes.reduce_op = usual_reduce_op(capability, BP_U8);
    const bool has_bytes = declares(capability, BP_U8, bytes.reduce_op);
    for (const uint64_t length : lengths) run(has_bytes ? bytes : usual, length);
    for (const uint64_t count : {1, 3, 5, 7, 31, 33, 1021, 4099, 16'411}) run(usual, count);
  };
  for_each(rank, group, any_op, vary, "no collective is native");
}

}  // namespace

std::vector<Case> collectives_buffer_cases() {
  const Needs any = {.ops = 0};
  return {
      Case("in-place", "input and output may be exactly in place, as op.h says for each operation", in_place, any),
      Case("misaligned", "buffers need no more than the natural alignment of their elements", misaligned, any),
      Case("adjacent-buffers", "input and output that touch do not overlap", adjacent_buffers, any),
      Case("uneven-counts", "blocks may have different sizes, be empty, and stand anywhere with gaps between",
           uneven_counts, any),
      Case("zero-counts", "a count of 0 is legal everywhere, and then data may be NULL", zero_counts, any),
      Case("input-unmodified", "an input that is not in place is never written to", input_unmodified, any),
      Case("guard-bytes", "nothing outside the buffers is written to", guard_bytes, any),
  };
}

}  // namespace backplane::conformance
