// SPDX-License-Identifier: Apache-2.0
//
// all_reduce gives the same bits on every rank, which keeps replicas of a model identical.
#include <cmath>

#include "../arithmetic.hpp"
#include "../names.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// Numbers of very different magnitude: each order of additions gives a different sum.
void fill_sensitive(uint32_t dtype, void* data, uint64_t count, uint64_t name) {
  const uint32_t part = dtype == BP_C64 ? uint32_t{BP_F32} : (dtype == BP_C128 ? uint32_t{BP_F64} : dtype);
  const int digits = static_cast<int>(-std::log2(epsilon(part)));
  const uint64_t numbers = is_complex(dtype) ? 2 * count : count;
  const int range = std::min(digits + 3, bp_dtype_size(part) == 1 ? 6 : 11);
  for (uint64_t i = 0; i < numbers; ++i) {
    const uint64_t word = message_name(1, 2, name, i);
    const double value = 1 + static_cast<double>(word >> 40) * 0x1p-24;
    const int exponent = static_cast<int>((word >> 8) % static_cast<uint64_t>(range)) - range / 2;
    from_double(part, data, i, std::ldexp((word & 1) != 0 ? -value : value, exponent));
  }
}

// FNV-1a, 64 bits.
uint64_t fingerprint(const std::byte* data, uint64_t bytes) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (uint64_t i = 0; i < bytes; ++i) hash = (hash ^ std::to_integer<uint64_t>(data[i])) * 0x100000001b3U;
  return hash;
}

struct Sum {
  uint32_t dtype;
  uint32_t reduce_op;
  uint64_t count;
  bool in_place;
};

Guarded all_reduce(Rank& rank, Collectives& group, const Sum& sum, uint64_t number) {
  const uint64_t bytes = sum.count * bp_dtype_size(sum.dtype);
  Guarded input(bytes);
  Guarded output(bytes);
  fill_sensitive(sum.dtype, sum.in_place ? output.data() : input.data(), sum.count,
                 message_name(rank.id(), 0, sum.reduce_op, number));
  bp_op op = make_op(BP_ALL_REDUCE, sum.dtype);
  op.reduce_op = sum.reduce_op;
  op.input = {sum.in_place ? output.data() : input.data(), sum.count, BP_HOST, 0};
  op.output = {output.data(), sum.count, BP_HOST, 0};
  op.seq = group.next_seq();
  op.timeout_ns = group.enough();
  rank.require_ok(group.agent().run(op), "all_reduce");
  return output;
}

std::vector<Sum> sums(const bp_capability& capability) {
  std::vector<Sum> all;
  for (const uint32_t dtype : {BP_F32, BP_F64, BP_F16, BP_BF16, BP_F8E4M3, BP_F8E5M2, BP_C64, BP_C128}) {
    for (const uint32_t reduce_op : {BP_SUM, BP_AVG, BP_PROD}) {
      if (!declares(capability, dtype, reduce_op)) continue;
      for (const uint64_t count : {1, 37, 1024, 40'001}) all.push_back({dtype, reduce_op, count, all.size() % 2 == 1});
    }
  }
  return all;
}

void equal_across_ranks(Rank& rank) {
  Collectives group(rank);
  const bp_capability& capability = group.require_native(BP_ALL_REDUCE);
  uint64_t number = 0;
  for (const Sum& sum : sums(capability)) {
    ++number;
    rank.step(fmt::format("comparing the bits of {} of {} x {} between the ranks", reduce_op_name(sum.reduce_op),
                          sum.count, dtype_name(sum.dtype)));
    const Guarded output = all_reduce(rank, group, sum, number);
    const uint64_t bytes = output.size();
    const std::string mine = std::to_string(fingerprint(output.data(), bytes));
    if (rank.id() == 0) rank.publish(fmt::format("bits/{}", number), mine);
    const std::string first = rank.await_value(fmt::format("bits/{}", number));
    rank.require(mine == first, "the same bits as on rank 0",
                 fmt::format("others: element 0 is {}", element_text(sum.dtype, output.data(), 0)));
  }
  if (number == 0) rank.skip("all_reduce is not native for floating-point elements");
}

void equal_on_repeat(Rank& rank) {
  Collectives group(rank);
  const bp_capability& capability = group.require_native(BP_ALL_REDUCE);
  uint64_t number = 0;
  for (const Sum& sum : sums(capability)) {
    ++number;
    rank.step(fmt::format("repeating {} of {} x {}", reduce_op_name(sum.reduce_op), sum.count, dtype_name(sum.dtype)));
    const Guarded first = all_reduce(rank, group, sum, number);
    for (int32_t turn = 0; turn < 10; ++turn) {
      if ((turn + rank.id()) % 3 == 0) rank.world().look("harness/pause");  // changes the order of arrival
      const Guarded again = all_reduce(rank, group, sum, number);
      const int64_t wrong = first_difference(sum.dtype, first.data(), again.data(), sum.count);
      rank.require(wrong < 0, "the same bits each time",
                   fmt::format("element {} differs at repetition {}", wrong, turn));
    }
  }
  if (number == 0) rank.skip("all_reduce is not native for floating-point elements");
}

}  // namespace

std::vector<Case> determinism_cases() {
  return {
      Case("equal-across-ranks", "all_reduce gives the same bits on every rank", equal_across_ranks,
           {.ops = BP_BIT(BP_ALL_REDUCE), .ranks = 2}),
      Case("equal-on-repeat", "all_reduce gives the same bits each time", equal_on_repeat,
           {.ops = BP_BIT(BP_ALL_REDUCE), .ranks = 2}, {.level = Level::kFull, .deadline = 60 * kSecond}),
  };
}

}  // namespace backplane::conformance
