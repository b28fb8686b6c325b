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

// A buffer of the program's collective, and the memory on which MPI works: the buffer, or a copy in which blocks follow
// each other.
struct CollectiveBuffer {
  void set(const bp_op& op, const bp_buffer& buffer, const uint64_t* block_counts, const uint64_t* block_displs,
           int32_t world_size, const Unit& unit);
  // Has MPI work on the buffer. Returns false if it does not count far enough for the displacements.
  bool use_directly(const bp_op& op, const Unit& unit, uint64_t max_count);
  void copy_in() const;
  void copy_out() const;
  bool overlaps(const CollectiveBuffer& other) const {
    return data < other.data + other.extent && other.data < data + extent;
  }

  std::byte* data = nullptr;
  std::byte* memory = nullptr;    // of MPI
  bool is_direct = false;         // `memory` is `data`
  bool has_gaps = false;          // between blocks, or their order is another one
  uint64_t bytes = 0;             // of all blocks
  uint64_t extent = 0;            // of `data`, in bytes
  std::vector<uint64_t> sizes;    // of blocks, in bytes
  std::vector<uint64_t> offsets;  // of blocks in `data`
  Blocks::Numbers counts;         // of blocks, in values; given to the request, like displs
  Blocks::Numbers displs;         // of blocks in `memory`, in values
};

void CollectiveBuffer::set(const bp_op& op, const bp_buffer& buffer, const uint64_t* block_counts,
                           const uint64_t* block_displs, int32_t world_size, const Unit& unit) {
  const uint64_t element = bp_dtype_size(op.dtype);
  data = static_cast<std::byte*>(buffer.data);
  extent = bytes = buffer.count * element;
  if (block_counts == nullptr || block_displs == nullptr) return;
  uint64_t values = 0;
  extent = bytes = 0;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    sizes.push_back(block_counts[rank] * element);
    offsets.push_back(block_displs[rank] * element);
    has_gaps = has_gaps || offsets.back() != bytes;
    const uint64_t count = block_counts[rank] * unit.per_element;
    counts.push_back(static_cast<int64_t>(count));
    displs.push_back(static_cast<int64_t>(values));
    values += count;
    bytes += sizes.back();
    extent = std::max(extent, offsets.back() + sizes.back());
  }
}

bool CollectiveBuffer::use_directly(const bp_op& op, const Unit& unit, uint64_t max_count) {
  const uint64_t values = extent / bp_dtype_size(op.dtype) * unit.per_element;
  if (has_gaps && values > max_count) return false;
  for (size_t i = 0; i < displs.size(); ++i) {
    displs[i] = static_cast<int64_t>(offsets[i] / bp_dtype_size(op.dtype) * unit.per_element);
  }
  memory = data;
  is_direct = true;
  return true;
}

void CollectiveBuffer::copy_in() const {
  if (is_direct) return;
  if (sizes.empty() && bytes > 0) std::memcpy(memory, data, bytes);
  std::byte* to = memory;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 0) std::memcpy(to, data + offsets[i], sizes[i]);
    to += sizes[i];
  }
}

void CollectiveBuffer::copy_out() const {
  if (is_direct) return;
  if (sizes.empty() && bytes > 0) std::memcpy(data, memory, bytes);
  const std::byte* from = memory;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 0) std::memcpy(data + offsets[i], from, sizes[i]);
    from += sizes[i];
  }
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
  Collective(GroupState& group, const bp_op& op) : Operation(group, op.kind) {
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
      set_buffers(op, unit, call);
    }
    pending_.front().request = group.api().start(call);
  }
  ~Collective() override { end_now(); }

 private:
  // Chooses the memory on which the call works, and copies the input there.
  void set_buffers(const bp_op& op, const Unit& unit, CollectiveCall& call) {
    const bool is_root = op.root == group_.rank;
    const bool is_broadcast = op.kind == BP_BROADCAST;
    in_.set(op, op.input, op.in_counts, op.in_displs, group_.world_size, unit);
    out_.set(op, op.output, op.out_counts, op.out_displs, group_.world_size, unit);
    const uint64_t elements = std::max({call.count, end_of(in_.counts, in_.displs), end_of(out_.counts, out_.displs)});
    if (elements > group_.api().max_count()) {
      throw sdk::Failure(BP_UNSUPPORTED, "mpi: " + sdk::describe(op) + " has " + std::to_string(elements) +
                                             " elements; the collectives of " + group_.api().version() +
                                             " count at most 2^31 - 1: split it, or use a library of MPI 4");
    }
    if (group_.direct.count() > 0) use_directly(op, unit);
    PendingRequest& pending = pending_.front();
    if (!out_.is_direct) out_.memory = pending.out.take(*group_.pool, out_.bytes);
    if (is_broadcast || (op.kind == BP_ALL_REDUCE && !in_.is_direct)) {
      in_.memory = out_.memory;  // of equal size
    } else if (!in_.is_direct) {
      in_.memory = pending.in.take(*group_.pool, in_.bytes);
    }
    if (!is_broadcast || is_root) in_.copy_in();
    writes_ = !is_broadcast || !is_root;
    call.in = in_.memory;
    call.out = out_.memory;
    if (in_.counts.empty() && out_.counts.empty()) return;
    pending.blocks.reset(
        new Blocks{std::move(in_.counts), std::move(in_.displs), std::move(out_.counts), std::move(out_.displs), {}});
    call.blocks = pending.blocks.get();
  }

  // Has MPI work on buffers of the program where it can.
  void use_directly(const bp_op& op, const Unit& unit) {
    const uint64_t max_count = group_.api().max_count();
    bool uses_in = group_.uses_directly(in_.bytes);
    bool uses_out = group_.uses_directly(out_.bytes);
    if (op.kind == BP_ALL_REDUCE || op.kind == BP_BROADCAST) {
      // The root's buffers of a broadcast are the same.
      if (uses_out) out_.use_directly(op, unit, max_count);
      if (uses_in) in_.use_directly(op, unit, max_count);
      return;
    }
    if (in_.overlaps(out_)) (in_.bytes <= out_.bytes ? uses_in : uses_out) = false;  // MPI takes no overlap
    if (op.kind == BP_REDUCE_SCATTERV && in_.has_gaps) uses_in = false;              // MPI takes no displacements
    if (uses_in) in_.use_directly(op, unit, max_count);
    if (uses_out) out_.use_directly(op, unit, max_count);
  }

  bool advance() override {
    if (!group_.api().test(pending_.front().request)) return false;
    if (writes_) out_.copy_out();
    return true;
  }
  GivenUp give_up() noexcept override {
    if ((in_.is_direct || out_.is_direct) && pending_.front().request != Request{}) return GivenUp::kNotYet;
    group_.world.abandoned().add(pending_.list());
    return GivenUp::kYes;
  }

  CollectiveBuffer in_;
  CollectiveBuffer out_;
  bool writes_ = false;
  OwnRequests pending_{group_.world.abandoned(), 1};
};

}  // namespace

std::unique_ptr<sdk::Work> collective(GroupState& group, const bp_op& op) { return perform<Collective>(group, op); }

}  // namespace backplane::mpi
