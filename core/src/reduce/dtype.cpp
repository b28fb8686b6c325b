// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "reduce/combine.hpp"

namespace backplane::core {

namespace {

struct Dtype {
  const char* name;
  uint64_t size;
  uint32_t reduce_ops;  // BP_BIT of each
};

constexpr uint32_t kBitOps = BP_BIT(BP_BAND) | BP_BIT(BP_BOR) | BP_BIT(BP_BXOR);
constexpr uint32_t kForBool = BP_ALL_REDUCE_OPS & ~BP_BIT(BP_AVG);
constexpr uint32_t kForIntegers = BP_ALL_REDUCE_OPS;
constexpr uint32_t kForFloats = BP_ALL_REDUCE_OPS & ~kBitOps;
constexpr uint32_t kForComplex = kForFloats & ~(BP_BIT(BP_MIN) | BP_BIT(BP_MAX));

// By value of BP_BOOL ...
constexpr Dtype kDtypes[] = {{"bool", 1, kForBool},    {"i8", 1, kForIntegers},   {"u8", 1, kForIntegers},
                             {"i16", 2, kForIntegers}, {"u16", 2, kForIntegers},  {"i32", 4, kForIntegers},
                             {"u32", 4, kForIntegers}, {"i64", 8, kForIntegers},  {"u64", 8, kForIntegers},
                             {"f16", 2, kForFloats},   {"bf16", 2, kForFloats},   {"f32", 4, kForFloats},
                             {"f64", 8, kForFloats},   {"f8e4m3", 1, kForFloats}, {"f8e5m2", 1, kForFloats},
                             {"c64", 8, kForComplex},  {"c128", 16, kForComplex}};
static_assert(std::size(kDtypes) == BP_DTYPE_COUNT);

// By value of BP_SUM ... and BP_BARRIER ...
constexpr const char* kReduceOps[] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"};
static_assert(std::size(kReduceOps) == BP_REDUCE_OP_COUNT);
constexpr const char* kOps[] = {"barrier",    "broadcast",   "reduce",         "all_reduce",
                                "gather",     "gatherv",     "scatter",        "scatterv",
                                "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv",
                                "all_to_all", "all_to_allv", "send",           "recv"};
static_assert(std::size(kOps) == BP_OP_COUNT);

}  // namespace

uint64_t dtype_size(uint32_t dtype) { return dtype < BP_DTYPE_COUNT ? kDtypes[dtype].size : 0; }

const char* dtype_name(uint32_t dtype) { return dtype < BP_DTYPE_COUNT ? kDtypes[dtype].name : "unknown dtype"; }

const char* reduce_op_name(uint32_t reduce_op) {
  return reduce_op < BP_REDUCE_OP_COUNT ? kReduceOps[reduce_op] : "unknown reduce op";
}

const char* op_name(uint32_t kind) { return kind < BP_OP_COUNT ? kOps[kind] : "unknown operation"; }

bool reducible(uint32_t dtype, uint32_t reduce_op) {
  return dtype < BP_DTYPE_COUNT && reduce_op < BP_REDUCE_OP_COUNT &&
         (kDtypes[dtype].reduce_ops & BP_BIT(reduce_op)) != 0;
}

}  // namespace backplane::core
