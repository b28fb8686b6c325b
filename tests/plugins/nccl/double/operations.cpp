// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "backplane/abi/types.h"
#include "reduce/combine.hpp"

namespace backplane::nccl_double {
namespace {

uint32_t dtype_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
      return BP_I8;
    case ncclUint8:
      return BP_U8;
    case ncclInt32:
      return BP_I32;
    case ncclUint32:
      return BP_U32;
    case ncclInt64:
      return BP_I64;
    case ncclUint64:
      return BP_U64;
    case ncclFloat16:
      return BP_F16;
    case ncclBfloat16:
      return BP_BF16;
    case ncclFloat32:
      return BP_F32;
    case ncclFloat64:
      return BP_F64;
    case ncclFloat8e4m3:
      return BP_F8E4M3;
    case ncclFloat8e5m2:
      return BP_F8E5M2;
    default:
      return BP_DTYPE_COUNT;
  }
}

uint32_t reduce_op_of(ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
      return BP_SUM;
    case ncclProd:
      return BP_PROD;
    case ncclMax:
      return BP_MAX;
    case ncclMin:
      return BP_MIN;
    case ncclAvg:
      return BP_AVG;
    default:
      return BP_PREMUL_SUM;
  }
}

class Collective {
 public:
  Collective(Segment& segment, int rank, int size, const Operation& operation, const std::atomic<bool>& stop)
      : segment_(segment), rank_(rank), size_(size), o_(operation), stop_(stop), width_(size_of(operation.dtype)) {}

  std::optional<ncclResult_t> run() {
    segment_.descriptor(rank_) = {static_cast<uint64_t>(o_.kind), o_.count, o_.dtype, o_.op, o_.peer, 0};
    if (!segment_.barrier(stop_)) return {};
    bool agreed = true;
    for (int r = 0; r < size_; ++r) agreed &= segment_.descriptor(r) == segment_.descriptor(rank_);
    if (!segment_.barrier(stop_)) return {};
    if (!agreed) return ncclInvalidUsage;
    return run_pieces() ? std::optional(ncclSuccess) : std::nullopt;
  }

 private:
  // For each piece, all ranks publish theirs, then read those that they need.
  bool run_pieces() {
    const int blocks = o_.kind == Kind::kReduceScatter || o_.kind == Kind::kAllToAll ? size_ : 1;
    const uint64_t max_count = kSlot / width_;
    for (int block = 0; block < blocks; ++block) {
      for (uint64_t at = 0; at < o_.count; at += max_count) {
        const uint64_t count = std::min(max_count, o_.count - at);
        publish(static_cast<uint64_t>(block) * o_.count + at, count);
        if (!segment_.barrier(stop_)) return false;
        take(block, at, count);
        if (!segment_.barrier(stop_)) return false;
      }
    }
    return true;
  }

  void publish(uint64_t at, uint64_t count) {
    if (o_.kind == Kind::kBroadcast && rank_ != o_.peer) return;
    std::byte* const slot = segment_.slot(rank_);
    if (o_.op == ncclNumOps) {
      core::multiply(dtype_of(o_.dtype), slot, o_.in + at * width_, o_.scalar.data(), count);
    } else {
      std::memcpy(slot, o_.in + at * width_, count * width_);
    }
  }

  void take(int block, uint64_t at, uint64_t count) {
    std::byte* const out = o_.out + at * width_;
    switch (o_.kind) {
      case Kind::kBroadcast:
        std::memcpy(out, segment_.slot(o_.peer), count * width_);
        return;
      case Kind::kAllToAll:
        if (rank_ != block) return;
        [[fallthrough]];
      case Kind::kAllGather:
        for (int r = 0; r < size_; ++r) {
          std::memcpy(out + static_cast<uint64_t>(r) * o_.count * width_, segment_.slot(r), count * width_);
        }
        return;
      case Kind::kReduce:
        if (rank_ == o_.peer) reduce(out, count);
        return;
      case Kind::kReduceScatter:
        if (rank_ == block) reduce(out, count);
        return;
      default:
        reduce(out, count);
    }
  }

  // In rank order, so that all ranks get the same bits.
  void reduce(std::byte* out, uint64_t count) {
    const uint32_t dtype = dtype_of(o_.dtype);
    const uint32_t op = reduce_op_of(o_.op);
    std::memcpy(out, segment_.slot(0), count * width_);
    for (int r = 1; r < size_; ++r) core::combine(dtype, op, out, out, segment_.slot(r), count);
    if (op == BP_AVG) core::divide(dtype, out, static_cast<uint64_t>(size_), count);
  }

  Segment& segment_;
  const int rank_;
  const int size_;
  const Operation& o_;
  const std::atomic<bool>& stop_;
  const uint64_t width_;
};

// A message in transit.
struct Message {
  const Operation* operation;
  uint64_t total;
  uint64_t at = 0;
  bool done = false;
  bool is_wrong = false;
};

bool step_send(Pair& pair, Message& m) {
  if (pair.full.load() != 0) return false;
  pair.size = static_cast<uint32_t>(std::min(kChunk, m.total - m.at));
  pair.total = m.total;
  std::memcpy(pair.data, m.operation->in + m.at, pair.size);
  m.at += pair.size;
  m.done = m.at == m.total;
  pair.full.store(1);
  return true;
}

bool step_recv(Pair& pair, Message& m) {
  if (pair.full.load() == 0) return false;
  if (pair.total != m.total) {
    m.is_wrong = true;
    return true;
  }
  std::memcpy(m.operation->out + m.at, pair.data, pair.size);
  m.at += pair.size;
  m.done = m.at == m.total;
  pair.full.store(0);
  return true;
}

}  // namespace

bool is_message(Kind kind) { return kind == Kind::kSend || kind == Kind::kRecv; }

uint64_t size_of(ncclDataType_t dtype) { return bp_dtype_size(dtype_of(dtype)); }

std::optional<ncclResult_t> run_collective(Segment& segment, int rank, int size, const Operation& operation,
                                           const std::atomic<bool>& stop) {
  return Collective(segment, rank, size, operation, stop).run();
}

std::optional<ncclResult_t> run_messages(Segment& segment, int rank, const std::vector<Operation>& operations,
                                         const std::atomic<bool>& stop) {
  std::vector<Message> messages;
  for (const Operation& o : operations) messages.push_back({&o, o.count * size_of(o.dtype)});
  for (int idle = 0;;) {
    bool moved = false;
    bool all_done = true;
    std::set<std::pair<Kind, int>> passed;  // messages of one kind and peer keep their order
    for (Message& m : messages) {
      const Operation& o = *m.operation;
      if (m.done || !passed.emplace(o.kind, o.peer).second) continue;
      moved |=
          o.kind == Kind::kSend ? step_send(segment.pair(rank, o.peer), m) : step_recv(segment.pair(o.peer, rank), m);
      if (m.is_wrong) return ncclInvalidUsage;
      all_done &= m.done;
    }
    for (const Message& m : messages) all_done &= m.done;
    if (all_done) return ncclSuccess;
    if (stop.load()) return {};
    idle = moved ? 0 : idle + 1;
    const timespec pause = {0, std::min(idle, 50) * 10'000L};
    if (idle > 2) ::nanosleep(&pause, nullptr);
  }
}

}  // namespace backplane::nccl_double
