// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "reduce/combine.hpp"

namespace backplane::core {

namespace {

// By value of BP_BOOL ...
constexpr const char* kDtypes[] = {"bool", "i8",   "u8",  "i16", "u16",    "i32",    "u32", "i64", "u64",
                                   "f16",  "bf16", "f32", "f64", "f8e4m3", "f8e5m2", "c64", "c128"};
static_assert(std::size(kDtypes) == BP_DTYPE_COUNT);

// By value of BP_SUM ... and BP_BARRIER ...
constexpr const char* kReduceOps[] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"};
static_assert(std::size(kReduceOps) == BP_REDUCE_OP_COUNT);
constexpr const char* kOps[] = {
    "barrier",    "broadcast",   "reduce",     "all_reduce",  "gather",         "gatherv",
    "scatter",    "scatterv",    "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv",
    "all_to_all", "all_to_allv", "send",       "recv",        "scan",           "exscan"};
static_assert(std::size(kOps) == BP_OP_COUNT);
constexpr const char* kStatuses[] = {"ok",        "invalid",  "unsupported", "timeout", "cancelled",
                                     "peer_lost", "resource", "again",       "internal"};
static_assert(std::size(kStatuses) == BP_INTERNAL + 1);

}  // namespace

const char* dtype_name(uint32_t dtype) { return dtype < BP_DTYPE_COUNT ? kDtypes[dtype] : "unknown dtype"; }

const char* reduce_op_name(uint32_t reduce_op) {
  return reduce_op < BP_REDUCE_OP_COUNT ? kReduceOps[reduce_op] : "unknown reduce op";
}

const char* status_name(int32_t status) {
  return status >= BP_OK && status <= BP_INTERNAL ? kStatuses[status] : "unknown status";
}

const char* op_name(uint32_t kind) { return kind < BP_OP_COUNT ? kOps[kind] : "unknown operation"; }

}  // namespace backplane::core
