// SPDX-License-Identifier: Apache-2.0
//
// The operations of the test double, which run on the thread of a stream.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "segment.hpp"

namespace backplane::nccl_double {

enum class Kind : uint64_t { kAllReduce = 1, kReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kSend, kRecv };

struct Operation {
  Kind kind;
  const std::byte* in;
  std::byte* out;
  uint64_t count;
  ncclDataType_t dtype;
  ncclRedOp_t op;                      // ncclNumOps: premul_sum
  int peer;                            // or root
  std::vector<std::byte> scalar = {};  // premul_sum
};

bool is_message(Kind kind);
uint64_t size_of(ncclDataType_t dtype);  // bytes; 0: unknown type

// Both return nothing if `stop` was set meanwhile. A collective that differs between ranks ends with ncclInvalidUsage
// on all of them.
std::optional<ncclResult_t> run_collective(Segment& segment, int rank, int size, const Operation& operation,
                                           const std::atomic<bool>& stop);
// Sends and receives that progress together.
std::optional<ncclResult_t> run_messages(Segment& segment, int rank, const std::vector<Operation>& operations,
                                         const std::atomic<bool>& stop);

}  // namespace backplane::nccl_double
