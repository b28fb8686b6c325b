// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>

#include "../arithmetic.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// A call of each native reduction for each declared pair of dtype and reduce op that `wanted` accepts.
template <typename Wanted, typename Vary>
void for_each_reduction(Rank& rank, Collectives& group, const Wanted& wanted, const Vary& vary, const char* none) {
  uint64_t number = 0;
  for (const uint32_t op : group.native_ops()) {
    if (!reduces(op)) continue;
    for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
      for (uint32_t reduce_op = 0; reduce_op < BP_REDUCE_OP_COUNT; ++reduce_op) {
        if (!declares(*group.native(op), dtype, reduce_op) || !wanted(dtype, reduce_op)) continue;
        ++number;
        vary(Shape{.op = op,
                   .dtype = dtype,
                   .reduce_op = reduce_op,
                   .root = static_cast<int32_t>(number % static_cast<uint64_t>(rank.size())),
                   .sync = number % 2 == 0,
                   .name = number});
      }
    }
  }
  if (number == 0) rank.skip(none);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

constexpr uint64_t kScenes = 10;

// The operand of a rank at element i. The reduction of these values does not depend on the order.
double special(uint64_t i, int32_t rank, int32_t ranks) {
  const bool first = rank == static_cast<int32_t>(i / kScenes % static_cast<uint64_t>(ranks));
  const bool second = rank == static_cast<int32_t>((i / kScenes + 1) % static_cast<uint64_t>(ranks));
  switch (i % kScenes) {
    case 0:
      return first ? kNan : 1;
    case 1:
      return first ? kInfinity : 1;
    case 2:
      return first ? -kInfinity : 1;
    case 3:
      return first ? kInfinity : (second ? -kInfinity : 1);
    case 4:
      return -0.0;
    case 5:
      return first ? kNan : kInfinity;
    case 6:
      return first ? kInfinity : (second ? 0 : 1);
    case 7:
      return first ? kNan : -0.0;
    case 8:
      return kNan;
    default:
      return first ? 1 : 0;
  }
}

// Element by element: NaN for NaN, otherwise the same number; the sign of a zero in sums and products, where IEEE 754
// fixes it.
std::string special_difference(const Shape& shape, const void* actual, int32_t ranks) {
  const uint64_t size = bp_dtype_size(shape.dtype);
  std::vector<std::byte> expected(shape.count * size);
  std::vector<std::byte> operands(shape.count * size);
  for (int32_t from = 0; from < ranks; ++from) {
    shape.operands(from, operands.data(), shape.count);
    if (from == 0) {
      expected = operands;
    } else {
      combine(shape.dtype, shape.reduce_op, expected.data(), expected.data(), operands.data(), shape.count);
    }
  }
  const bool signs = shape.reduce_op == BP_SUM || shape.reduce_op == BP_PROD;
  for (uint64_t i = 0; i < shape.count; ++i) {
    const double right = as_double(shape.dtype, expected.data(), i);
    const double found = as_double(shape.dtype, actual, i);
    if (std::isnan(right) && std::isnan(found)) continue;
    if (right == found && (!signs || std::signbit(right) == std::signbit(found))) continue;
    std::string inputs;
    for (int32_t from = 0; from < ranks; ++from) {
      shape.operands(from, operands.data(), shape.count);
      inputs += fmt::format("{}{:g}", from == 0 ? "" : ", ", as_double(shape.dtype, operands.data(), i));
    }
    return fmt::format("element {}, from {}: expected {}, found {}", i, inputs,
                       element_text(shape.dtype, expected.data(), i), element_text(shape.dtype, actual, i));
  }
  return "";
}

void special_values(Rank& rank) {
  Collectives group(rank);
  const auto wanted = [](uint32_t dtype, uint32_t reduce_op) {
    return is_floating(dtype) &&
           (reduce_op == BP_SUM || reduce_op == BP_PROD || reduce_op == BP_MIN || reduce_op == BP_MAX);
  };
  const auto vary = [&rank, &group](Shape shape) {
    shape.count = 6 * kScenes;
    shape.operands = [&rank, dtype = shape.dtype](int32_t from, void* data, uint64_t count) {
      for (uint64_t i = 0; i < count; ++i) from_double(dtype, data, i, special(i, from, rank.size()));
    };
    shape.special = special_difference;
    group.run(shape);
  };
  for_each_reduction(rank, group, wanted, vary, "no reduction of floating-point elements is native");
}

// The values at the ends of an integer's range, whose sums and products do not fit.
void integer_overflow(Rank& rank) {
  Collectives group(rank);
  const auto wanted = [](uint32_t dtype, uint32_t reduce_op) {
    return is_integer(dtype) && (reduce_op == BP_SUM || reduce_op == BP_PROD || reduce_op == BP_PREMUL_SUM);
  };
  const auto vary = [&group](Shape shape) {
    shape.count = 130;
    shape.operands = [dtype = shape.dtype](int32_t from, void* data, uint64_t count) {
      const uint64_t size = bp_dtype_size(dtype);
      for (uint64_t i = 0; i < count; ++i) {
        // 0x7f.., 0x80.., 0xff.., each with one bit that identifies rank and element.
        auto* element = static_cast<uint8_t*>(data) + i * size;
        std::memset(element, i % 3 == 1 ? 0 : 0xFF, size);
        element[size - 1] = static_cast<uint8_t>(i % 3 == 0 ? 0x7F : (i % 3 == 1 ? 0x80 : 0xFF));
        element[0] = static_cast<uint8_t>(element[0] ^ (uint64_t{2} << ((i + static_cast<uint64_t>(from)) % 5)));
      }
    };
    group.run(shape);
  };
  for_each_reduction(rank, group, wanted, vary, "no sum or product of integers is native");
}

// f16, bf16 and 8-bit floats with all their digits. Three ranks add, so two additions round.
void rounding(Rank& rank) {
  Collectives group(rank);
  const auto wanted = [](uint32_t dtype, uint32_t reduce_op) { return is_small_float(dtype) && reduce_op == BP_SUM; };
  const auto vary = [&rank, &group](Shape shape) {
    shape.count = 600;
    shape.additions = 2;
    const auto ranks = static_cast<uint64_t>(rank.size());
    shape.operands = [dtype = shape.dtype, name = shape.name, ranks](int32_t from, void* data, uint64_t count) {
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t place = (static_cast<uint64_t>(from) + ranks - i % ranks) % ranks;
        const uint64_t word = message_name(from, 0, name, i);
        const double value = std::ldexp(1 + static_cast<double>(word % 4096) / 4096, static_cast<int>(word >> 60) % 4);
        from_double(dtype, data, i, place < 3 ? value : 0);
      }
    };
    group.run(shape);
  };
  for_each_reduction(rank, group, wanted, vary, "no sum of small floats is native");
}

template <typename Wanted>
void plain(Rank& rank, const Wanted& wanted, const char* none) {
  Collectives group(rank);
  const auto vary = [&group](Shape shape) {
    for (const uint64_t count : {1, 257, 3001}) {
      shape.count = count;
      group.run(shape);
      shape.sync = !shape.sync;
      shape.name += 1000;
    }
  };
  for_each_reduction(rank, group, wanted, vary, none);
}

void average(Rank& rank) {
  plain(
      rank, [](uint32_t, uint32_t reduce_op) { return reduce_op == BP_AVG; }, "no average is native");
}

void premul_sum(Rank& rank) {
  plain(
      rank, [](uint32_t, uint32_t reduce_op) { return reduce_op == BP_PREMUL_SUM; }, "no premul_sum is native");
}

void complex_numbers(Rank& rank) {
  plain(
      rank, [](uint32_t dtype, uint32_t) { return is_complex(dtype); }, "no reduction of complex elements is native");
}

void booleans(Rank& rank) {
  plain(
      rank, [](uint32_t dtype, uint32_t) { return dtype == BP_BOOL; }, "no reduction of bool is native");
}

// Operations that move data keep all bits: payloads of NaNs and signs of zeros.
void bits_kept(Rank& rank) {
  Collectives group(rank);
  uint64_t number = 0;
  for (const uint32_t op : group.native_ops()) {
    if (op == BP_BARRIER || reduces(op)) continue;
    for (const uint32_t dtype : {BP_F16, BP_BF16, BP_F32, BP_F64, BP_F8E4M3, BP_F8E5M2, BP_C64, BP_C128}) {
      if (!declares(*group.native(op), dtype, 0)) continue;
      ++number;
      Shape shape = {.op = op, .dtype = dtype, .count = 1200, .name = number};
      shape.operands = [dtype, number](int32_t from, void* data, uint64_t count) {
        fill_bits(dtype, data, count, message_name(from, 0, 1, number));
        // Every third byte all ones: many NaNs, with payloads of all kinds.
        auto* bytes = static_cast<uint8_t*>(data);
        for (uint64_t i = 2; i < count * bp_dtype_size(dtype); i += 3) bytes[i] = i % 2 == 0 ? 0xFF : 0x80;
      };
      group.run(shape);
    }
  }
  if (number == 0) rank.skip("no collective that moves floating-point elements is native");
}

}  // namespace

std::vector<Case> collectives_value_cases() {
  const Needs any = {.ops = 0};
  return {
      Case("special-values", "NaN and infinities propagate by IEEE 754 and types.h, and -0 keeps its sign",
           special_values, any),
      Case("integer-overflow", "sums and products of integers wrap", integer_overflow, any),
      Case("rounding", "sums of small floats err by no more than the rounding of their additions", rounding, any),
      Case("average", "avg is the sum divided by the world size, of integers rounded toward zero", average, any),
      Case("premul-sum", "premul_sum multiplies each rank's input by that rank's factor", premul_sum, any),
      Case("complex", "complex elements are reduced as complex numbers", complex_numbers, any),
      Case("bool", "bools reduce to 0 or 1: sum and max are or, prod and min are and", booleans, any),
      Case("bits-kept", "operations that move elements keep every bit of them, NaNs included", bits_kept, any),
  };
}

}  // namespace backplane::conformance
