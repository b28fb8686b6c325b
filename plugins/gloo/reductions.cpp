// SPDX-License-Identifier: Apache-2.0
#include "reductions.hpp"

#include <type_traits>

namespace backplane::gloo {
namespace {

using Function = void (*)(void*, const void*, const void*, size_t);

template <typename T, typename Op>
void combine(void* out, const void* left, const void* right, size_t count) {
  auto* result = static_cast<T*>(out);
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  for (size_t i = 0; i < count; ++i) result[i] = Op{}(a[i], b[i]);
}

// Sums and products wrap: 64 bits hold the product of two narrower integers before truncation.
template <typename T>
using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
  }
};
struct Product {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};
// NaN if either operand is NaN.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

template <typename T>
Function arithmetic(uint32_t reduce_op) {
  switch (reduce_op) {
    case BP_SUM:
      return combine<T, Sum>;
    case BP_PROD:
      return combine<T, Product>;
    case BP_MIN:
      return combine<T, Min>;
    case BP_MAX:
      return combine<T, Max>;
    default:
      return nullptr;
  }
}

template <typename T>
Function integral(uint32_t reduce_op) {
  switch (reduce_op) {
    case BP_BAND:
      return combine<T, And>;
    case BP_BOR:
      return combine<T, Or>;
    case BP_BXOR:
      return combine<T, Xor>;
    default:
      return arithmetic<T>(reduce_op);
  }
}

Function boolean(uint32_t reduce_op) {
  switch (reduce_op) {
    case BP_SUM:
    case BP_MAX:
      return integral<uint8_t>(BP_BOR);
    case BP_PROD:
    case BP_MIN:
      return integral<uint8_t>(BP_BAND);
    default:
      return integral<uint8_t>(reduce_op);
  }
}

Function compiled(uint32_t dtype, uint32_t reduce_op) {
  switch (dtype) {
    case BP_BOOL:
      return boolean(reduce_op);
    case BP_I8:
      return integral<int8_t>(reduce_op);
    case BP_U8:
      return integral<uint8_t>(reduce_op);
    case BP_I16:
      return integral<int16_t>(reduce_op);
    case BP_U16:
      return integral<uint16_t>(reduce_op);
    case BP_I32:
      return integral<int32_t>(reduce_op);
    case BP_U32:
      return integral<uint32_t>(reduce_op);
    case BP_I64:
      return integral<int64_t>(reduce_op);
    case BP_U64:
      return integral<uint64_t>(reduce_op);
    case BP_F32:
      return arithmetic<float>(reduce_op);
    case BP_F64:
      return arithmetic<double>(reduce_op);
    default:
      return nullptr;
  }
}

}  // namespace

Reduction reduction(const sdk::Host& host, uint32_t dtype, uint32_t reduce_op) {
  if (const Function function = compiled(dtype, reduce_op)) return function;
  return [&host, dtype, reduce_op](void* out, const void* left, const void* right, size_t count) {
    host.combine(dtype, reduce_op, out, left, right, count);
  };
}

}  // namespace backplane::gloo
