// SPDX-License-Identifier: Apache-2.0
#include "names.hpp"

#include <array>
#include <cstddef>

#include "backplane/abi/abi.h"

namespace backplane::conformance {
namespace {

template <size_t N>
const char* name(const std::array<const char*, N>& names, uint32_t value) {
  return value < N ? names[value] : "?";
}

}  // namespace

const char* op_name(uint32_t op) {
  static constexpr std::array<const char*, BP_OP_COUNT> kNames = {
      "barrier",    "broadcast",   "reduce",     "all_reduce",  "gather",         "gatherv",
      "scatter",    "scatterv",    "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv",
      "all_to_all", "all_to_allv", "send",       "recv",        "scan",           "exscan"};
  return name(kNames, op);
}

const char* dtype_name(uint32_t dtype) {
  static constexpr std::array<const char*, BP_DTYPE_COUNT> kNames = {"bool", "i8",     "u8",     "i16", "u16",  "i32",
                                                                     "u32",  "i64",    "u64",    "f16", "bf16", "f32",
                                                                     "f64",  "f8e4m3", "f8e5m2", "c64", "c128"};
  return name(kNames, dtype);
}

const char* reduce_op_name(uint32_t reduce_op) {
  static constexpr std::array<const char*, BP_REDUCE_OP_COUNT> kNames = {"sum",  "prod", "min",  "max",       "avg",
                                                                         "band", "bor",  "bxor", "premul_sum"};
  return name(kNames, reduce_op);
}

const char* memory_name(uint32_t memory) {
  static constexpr std::array<const char*, BP_MEMORY_COUNT> kNames = {"host", "cuda"};
  return name(kNames, memory);
}

}  // namespace backplane::conformance
