// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "backplane/sdk/owned_op.hpp"

namespace backplane::mpi {
namespace {

// An element as MPI sees it: `per_element` values of a type.
struct Unit {
  Predefined type;
  uint64_t per_element;
};

// Data that is only moved has the type of its size.
Unit moved(uint32_t dtype) {
  switch (bp_dtype_size(dtype)) {
    case 1:
      return {kByte, 1};
    case 2:
      return {kUint16, 1};
    case 4:
      return {kUint32, 1};
    case 8:
      return {kUint64, 1};
    default:
      return {kUint64, 2};
  }
}

// Signed sums and products wrap like unsigned ones, which C defines. Sums of complex numbers are those of their parts.
Unit reduced(uint32_t dtype, uint32_t reduce_op) {
  const bool is_ordered = reduce_op == BP_MIN || reduce_op == BP_MAX;
  switch (dtype) {
    case BP_I8:
      return {is_ordered ? kInt8 : kUint8, 1};
    case BP_I16:
      return {is_ordered ? kInt16 : kUint16, 1};
    case BP_I32:
      return {is_ordered ? kInt32 : kUint32, 1};
    case BP_I64:
      return {is_ordered ? kInt64 : kUint64, 1};
    case BP_U16:
      return {kUint16, 1};
    case BP_U32:
      return {kUint32, 1};
    case BP_U64:
      return {kUint64, 1};
    case BP_F32:
      return {kFloat, 1};
    case BP_F64:
      return {kDouble, 1};
    case BP_C64:
      return {kFloat, 2};
    case BP_C128:
      return {kDouble, 2};
    default:  // BP_BOOL, BP_U8
      return {kUint8, 1};
  }
}

// The sum of bools is or, their product and.
Predefined reduction(uint32_t dtype, uint32_t reduce_op) {
  const bool is_bool = dtype == BP_BOOL;
  switch (reduce_op) {
    case BP_SUM:
      return is_bool ? kBor : kSum;
    case BP_PROD:
      return is_bool ? kBand : kProd;
    case BP_MIN:
      return is_bool ? kBand : kMin;
    case BP_MAX:
      return is_bool ? kBor : kMax;
    case BP_BAND:
      return kBand;
    case BP_BOR:
      return kBor;
    default:
      return kBxor;
  }
}

// A buffer of the program's collective, and the copy on which MPI works, in which blocks follow each other.
struct StagedBuffer {
  void set(const bp_op& op, const bp_buffer& buffer, const uint64_t* block_counts, const uint64_t* block_displs,
           int32_t world_size, const Unit& unit);
  void copy_in() const;
  void copy_out() const;

  std::byte* data = nullptr;
  std::byte* copy = nullptr;
  uint64_t bytes = 0;             // of `copy`
  std::vector<uint64_t> sizes;    // of blocks, in bytes
  std::vector<uint64_t> offsets;  // of blocks in `data`
  Blocks::Numbers counts;         // of blocks, in values; given to the request, like displs
  Blocks::Numbers displs;         // of blocks in `copy`, in values
};

void StagedBuffer::set(const bp_op& op, const bp_buffer& buffer, const uint64_t* block_counts,
                       const uint64_t* block_displs, int32_t world_size, const Unit& unit) {
  const uint64_t element = bp_dtype_size(op.dtype);
  data = static_cast<std::byte*>(buffer.data);
  bytes = buffer.count * element;
  if (block_counts == nullptr || block_displs == nullptr) return;
  uint64_t values = 0;
  bytes = 0;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    sizes.push_back(block_counts[rank] * element);
    offsets.push_back(block_displs[rank] * element);
    const uint64_t count = block_counts[rank] * unit.per_element;
    counts.push_back(static_cast<int64_t>(count));
    displs.push_back(static_cast<int64_t>(values));
    values += count;
    bytes += sizes.back();
  }
}

void StagedBuffer::copy_in() const {
  if (sizes.empty() && bytes > 0) std::memcpy(copy, data, bytes);
  std::byte* to = copy;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 0) std::memcpy(to, data + offsets[i], sizes[i]);
    to += sizes[i];
  }
}

void StagedBuffer::copy_out() const {
  if (sizes.empty() && bytes > 0) std::memcpy(data, copy, bytes);
  const std::byte* from = copy;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 0) std::memcpy(data + offsets[i], from, sizes[i]);
    from += sizes[i];
  }
}

// Of all blocks together.
uint64_t values_of(const StagedBuffer& buffer) {
  return buffer.counts.empty() ? 0 : static_cast<uint64_t>(buffer.counts.back() + buffer.displs.back());
}

// The number of elements that MPI is given: per rank, where blocks are equal.
uint64_t elements_of(const bp_op& op, int32_t world_size) {
  switch (op.kind) {
    case BP_BROADCAST:
    case BP_SCATTER:
    case BP_SCATTERV:
    case BP_REDUCE_SCATTER:
    case BP_REDUCE_SCATTERV:
      return op.output.count;
    case BP_ALL_TO_ALL:
      return op.input.count / static_cast<uint64_t>(world_size);
    default:
      return op.input.count;
  }
}

class Collective final : public Operation {
 public:
  Collective(GroupState& group, const bp_op& op) : Operation(group) {
    const bool reduces = (BP_REDUCTIONS & BP_BIT(op.kind)) != 0;
    const Unit unit = reduces ? reduced(op.dtype, op.reduce_op) : moved(op.dtype);
    CollectiveCall call;
    call.kind = op.kind;
    call.comm = group.user;
    call.root = op.root;
    if (op.kind != BP_BARRIER) {
      call.count = elements_of(op, group.world_size) * unit.per_element;
      call.type = unit.type;
      call.op = reduces ? reduction(op.dtype, op.reduce_op) : kSum;
      copy(op, unit, call);
    }
    pending_.front().request = group.api().start(call);
  }
  ~Collective() override { end_now(); }

 private:
  // Makes the copies of the buffers, and has the call use them.
  void copy(const bp_op& op, const Unit& unit, CollectiveCall& call) {
    const bool is_root = op.root == group_.rank;
    const bool one_copy = op.kind == BP_ALL_REDUCE || op.kind == BP_BROADCAST;
    in_.set(op, op.input, op.in_counts, op.in_displs, group_.world_size, unit);
    out_.set(op, op.output, op.out_counts, op.out_displs, group_.world_size, unit);
    const uint64_t elements = std::max({call.count, values_of(in_), values_of(out_)});
    if (elements > group_.api().max_count()) {
      throw sdk::Failure(BP_UNSUPPORTED, "mpi: " + sdk::describe(op) + " has " + std::to_string(elements) +
                                             " elements; the collectives of " + group_.api().version() +
                                             " count at most 2^31 - 1: split it, or use a library of MPI 4");
    }
    PendingRequest& pending = pending_.front();
    pending.out = group_.pool->take(out_.bytes);
    pending.in = one_copy ? pending.out : group_.pool->take(in_.bytes);
    in_.copy = pending.in.get();
    out_.copy = pending.out.get();
    if (op.kind != BP_BROADCAST || is_root) in_.copy_in();
    writes_ = op.kind != BP_BROADCAST || !is_root;
    call.in = in_.copy;
    call.out = out_.copy;
    if (in_.counts.empty() && out_.counts.empty()) return;
    pending.blocks = {std::move(in_.counts), std::move(in_.displs), std::move(out_.counts), std::move(out_.displs), {}};
    call.blocks = &pending.blocks;
  }

  bool advance() override {
    if (!group_.api().test(pending_.front().request)) return false;
    if (writes_) out_.copy_out();
    return true;
  }
  void give_up() noexcept override { group_.world.abandoned().add(pending_); }

  StagedBuffer in_;
  StagedBuffer out_;
  bool writes_ = false;
  PendingRequests pending_{1};
};

}  // namespace

std::unique_ptr<Operation> start_collective(GroupState& group, const bp_op& op) {
  return std::make_unique<Collective>(group, op);
}

}  // namespace backplane::mpi
