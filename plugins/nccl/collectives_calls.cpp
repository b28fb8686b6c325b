// SPDX-License-Identifier: Apache-2.0
#include "collectives_calls.hpp"

#include <algorithm>

#include "backplane/sdk/failure.hpp"

namespace backplane::nccl {
namespace {

ncclDataType_t nccl_dtype(uint32_t dtype) {
  switch (dtype) {
    case BP_I8:
      return ncclInt8;
    case BP_U8:
      return ncclUint8;
    case BP_I32:
      return ncclInt32;
    case BP_U32:
      return ncclUint32;
    case BP_I64:
      return ncclInt64;
    case BP_U64:
      return ncclUint64;
    case BP_F16:
      return ncclFloat16;
    case BP_BF16:
      return ncclBfloat16;
    case BP_F32:
      return ncclFloat32;
    case BP_F64:
      return ncclFloat64;
    case BP_F8E4M3:
      return ncclFloat8e4m3;
    case BP_F8E5M2:
      return ncclFloat8e5m2;
    default:
      throw sdk::Failure(BP_UNSUPPORTED, "nccl: NCCL cannot reduce dtype " + std::to_string(dtype));
  }
}

ncclRedOp_t nccl_op(uint32_t reduce_op) {
  switch (reduce_op) {
    case BP_SUM:
      return ncclSum;
    case BP_PROD:
      return ncclProd;
    case BP_MIN:
      return ncclMin;
    case BP_MAX:
      return ncclMax;
    case BP_AVG:
      return ncclAvg;
    default:
      throw sdk::Failure(BP_UNSUPPORTED, "nccl: NCCL has no reduce op " + std::to_string(reduce_op));
  }
}

uint64_t total(const uint64_t* counts, int32_t size) {
  uint64_t sum = 0;
  for (int32_t r = 0; r < size; ++r) sum += counts[r];
  return sum;
}

class Calls {
 public:
  Calls(const CollectiveContext& context, ncclComm_t comm, const bp_op& op)
      : c_(context), comm_(comm), op_(op), width_(bp_dtype_size(op.dtype)) {}

  void own_copies(void* input_copy) const {
    switch (op_.kind) {
      case BP_GATHER:
      case BP_GATHERV:
        if (c_.rank != op_.root) return;
        return copy(in(), out() + displ(op_.out_displs, op_.input.count, c_.rank) * width_, op_.input.count);
      case BP_SCATTER:
      case BP_SCATTERV:
        if (c_.rank != op_.root) return;
        return copy(in() + displ(op_.in_displs, op_.output.count, c_.rank) * width_, out(), op_.output.count);
      case BP_ALL_TO_ALL:
      case BP_ALL_TO_ALLV: {
        if (input_copy != nullptr) copy(in(), static_cast<std::byte*>(input_copy), op_.input.count);
        const uint64_t each = op_.input.count / static_cast<uint64_t>(c_.size);
        if (is_native_all_to_all()) return;
        copy(in() + displ(op_.in_displs, each, c_.rank) * width_, out() + displ(op_.out_displs, each, c_.rank) * width_,
             count(op_.in_counts, each, c_.rank));
        return;
      }
      default:
        return;
    }
  }

  void collective(void* input_copy, void* barrier_buffer, ncclRedOp_t* premul_sum) const {
    switch (op_.kind) {
      case BP_BARRIER:
        return ok(c_.api.nccl.all_reduce(barrier_buffer, barrier_buffer, 1, ncclInt32, ncclSum, comm_, c_.stream),
                  "barrier");
      case BP_BROADCAST:
        return broadcast(in(), out(), op_.output.count, op_.root);
      case BP_ALL_GATHER:
        return ok(c_.api.nccl.all_gather(in(), out(), op_.input.count * width_, ncclUint8, comm_, c_.stream),
                  "all_gather");
      case BP_ALL_GATHERV:
        for (int32_t r = 0; r < c_.size; ++r) {
          broadcast(in(), out() + op_.out_displs[r] * width_, op_.out_counts[r], r);
        }
        return;
      case BP_GATHER:
      case BP_GATHERV:
        return gather();
      case BP_SCATTER:
      case BP_SCATTERV:
        return scatter();
      case BP_ALL_TO_ALL:
      case BP_ALL_TO_ALLV:
        return all_to_all(input_copy == nullptr ? in() : static_cast<const std::byte*>(input_copy));
      default:
        return reduce(premul_sum);
    }
  }

 private:
  std::byte* in() const { return static_cast<std::byte*>(op_.input.data); }
  std::byte* out() const { return static_cast<std::byte*>(op_.output.data); }
  void ok(ncclResult_t result, const char* what) const { check(c_.api, result, what, comm_); }
  void ok(cudaError_t result, const char* what) const { check(c_.api, result, what); }

  // The offset and length of rank r's block, in elements.
  static uint64_t displ(const uint64_t* displs, uint64_t each, int32_t r) {
    return displs != nullptr ? displs[r] : each * static_cast<uint64_t>(r);
  }
  static uint64_t count(const uint64_t* counts, uint64_t each, int32_t r) {
    return counts != nullptr ? counts[r] : each;
  }

  void broadcast(const std::byte* from, std::byte* to, uint64_t count, int32_t root) const {
    if (count == 0) return;
    ok(c_.api.nccl.broadcast(c_.rank == root ? from : to, to, count * width_, ncclUint8, root, comm_, c_.stream),
       "broadcast");
  }
  void send(const std::byte* data, uint64_t count, int32_t peer) const {
    if (count > 0) ok(c_.api.nccl.send(data, count * width_, ncclUint8, peer, comm_, c_.stream), "send");
  }
  void recv(std::byte* data, uint64_t count, int32_t peer) const {
    if (count > 0) ok(c_.api.nccl.recv(data, count * width_, ncclUint8, peer, comm_, c_.stream), "recv");
  }
  void copy(const std::byte* from, std::byte* to, uint64_t count) const {
    if (count == 0 || from == to) return;
    ok(c_.api.cuda.memcpy_async(to, from, count * width_, cudaMemcpyDeviceToDevice, c_.stream), "copying a block");
  }

  void gather() const {
    const uint64_t each = op_.input.count;
    if (c_.rank != op_.root) return send(in(), each, op_.root);
    for (int32_t r = 0; r < c_.size; ++r) {
      if (r != c_.rank) recv(out() + displ(op_.out_displs, each, r) * width_, count(op_.out_counts, each, r), r);
    }
  }

  void scatter() const {
    const uint64_t each = op_.output.count;
    if (c_.rank != op_.root) return recv(out(), each, op_.root);
    for (int32_t r = 0; r < c_.size; ++r) {
      if (r != c_.rank) send(in() + displ(op_.in_displs, each, r) * width_, count(op_.in_counts, each, r), r);
    }
  }

  bool is_native_all_to_all() const { return op_.kind == BP_ALL_TO_ALL && c_.api.nccl.all_to_all != nullptr; }

  void all_to_all(const std::byte* from) const {
    const uint64_t each = op_.input.count / static_cast<uint64_t>(c_.size);
    if (is_native_all_to_all()) {
      return ok(c_.api.nccl.all_to_all(from, out(), each * width_, ncclUint8, comm_, c_.stream), "all_to_all");
    }
    for (int32_t r = 0; r < c_.size; ++r) {
      if (r == c_.rank) continue;
      send(from + displ(op_.in_displs, each, r) * width_, count(op_.in_counts, each, r), r);
      recv(out() + displ(op_.out_displs, each, r) * width_, count(op_.out_counts, each, r), r);
    }
  }

  void reduce(ncclRedOp_t* premul_sum) const {
    const ncclDataType_t dtype = nccl_dtype(op_.dtype);
    if (op_.reduce_op == BP_PREMUL_SUM) {
      ok(c_.api.nccl.red_op_create_pre_mul_sum(premul_sum, const_cast<void*>(op_.scalar), dtype,
                                               ncclScalarHostImmediate, comm_),
         "creating a premul_sum");
    }
    const ncclRedOp_t how = op_.reduce_op == BP_PREMUL_SUM ? *premul_sum : nccl_op(op_.reduce_op);
    if (op_.kind == BP_ALL_REDUCE) {
      return ok(c_.api.nccl.all_reduce(in(), out(), op_.input.count, dtype, how, comm_, c_.stream), "all_reduce");
    }
    if (op_.kind == BP_REDUCE) {
      return ok(c_.api.nccl.reduce(in(), out(), op_.input.count, dtype, how, op_.root, comm_, c_.stream), "reduce");
    }
    if (op_.kind == BP_REDUCE_SCATTER) {
      return ok(c_.api.nccl.reduce_scatter(in(), out(), op_.output.count, dtype, how, comm_, c_.stream),
                "reduce_scatter");
    }
    for (int32_t r = 0; r < c_.size; ++r) {
      if (op_.in_counts[r] == 0) continue;
      ok(c_.api.nccl.reduce(in() + op_.in_displs[r] * width_, out(), op_.in_counts[r], dtype, how, r, comm_, c_.stream),
         "reduce_scatterv");
    }
  }

  const CollectiveContext& c_;
  const ncclComm_t comm_;
  const bp_op& op_;
  const uint64_t width_;
};

}  // namespace

bool is_empty(const bp_op& op) { return op.kind != BP_BARRIER && op.input.count == 0 && op.output.count == 0; }

void enqueue_own_copies(const CollectiveContext& context, const bp_op& op, void* input_copy) {
  Calls(context, nullptr, op).own_copies(input_copy);
}

void enqueue_collective(const CollectiveContext& context, ncclComm_t comm, const bp_op& op, void* input_copy,
                        void* barrier_buffer, ncclRedOp_t* premul_sum) {
  if (op.kind == BP_REDUCE_SCATTERV && total(op.in_counts, context.size) == 0) return;
  Calls(context, comm, op).collective(input_copy, barrier_buffer, premul_sum);
}

}  // namespace backplane::nccl
