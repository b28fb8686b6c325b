// SPDX-License-Identifier: Apache-2.0
#include "group/operation.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "error.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kMaxBytes = UINT64_C(1) << 48;

class Validation {
 public:
  Validation(const bp_op& given, int32_t rank, int32_t world_size, Operation* operation)
      : rank_(rank), world_(static_cast<uint64_t>(world_size)), operation_(*operation), op_(operation->op) {
    if (given.struct_size == sizeof(bp_op)) {
      op_ = given;
      return;
    }
    // The program may be older or newer than the core: fields that it lacks are zero, and fields that the core does not
    // know are ignored.
    constexpr size_t kFirstSize = offsetof(bp_op, message) + sizeof(bp_message*);
    if (given.struct_size < kFirstSize) {
      refuse("bp_op.struct_size is {}; at least {} is needed", given.struct_size, kFirstSize);
    }
    op_ = {};
    std::memcpy(&op_, &given, std::min<size_t>(given.struct_size, sizeof(bp_op)));
    op_.struct_size = sizeof(bp_op);
  }

  void run() {
    if (op_.kind >= BP_OP_COUNT) refuse("there is no operation kind {}", op_.kind);
    if (op_.kind == BP_BARRIER) return barrier();
    size_ = dtype_size(op_.dtype);
    if (op_.dtype == BP_DTYPE_UNSET) refuse("{}: bp_op.dtype has not been set", op_name(op_.kind));
    if (size_ == 0) refuse("{}: there is no dtype {}", op_name(op_.kind), op_.dtype);
    check_buffer(op_.input, "input");
    check_buffer(op_.output, "output");
    check_reduction();
    check_root_or_peer();
    shape();
  }

 private:
  // The input or the output, with its blocks.
  struct Side {
    bp_buffer& buffer;
    const uint64_t*& counts;
    const uint64_t*& displs;
    std::vector<uint64_t>& own_displs;  // for displacements that the caller left out
    const char* name;
  };
  Side input() const { return {op_.input, op_.in_counts, op_.in_displs, operation_.in_displs, "input"}; }
  Side output() const { return {op_.output, op_.out_counts, op_.out_displs, operation_.out_displs, "output"}; }

  // Takes arguments by value, not the addresses of members, so that this object can stay in registers.
  template <typename... Args>
  [[noreturn]] static void refuse(fmt::format_string<Args...> format, Args... args) {
    throw Error(BP_INVALID, fmt::format(format, std::move(args)...));
  }

  void barrier() {
    op_.dtype = 0;
    op_.input = op_.output = {};
    clear_counts();
  }

  void clear_counts() { op_.in_counts = op_.in_displs = op_.out_counts = op_.out_displs = nullptr; }

  // Whether `blocks` blocks of `count` elements exceed any address space. Multiplies: a division would take longer than
  // all other checks together.
  bool exceeds_memory(uint64_t count, uint64_t blocks) const {
    uint64_t bytes = 0;
    return __builtin_mul_overflow(count, size_ * blocks, &bytes) || bytes > kMaxBytes;
  }

  void check_buffer(const bp_buffer& buffer, const char* which) const {
    if (buffer.memory >= BP_MEMORY_COUNT) refuse("{}: there is no memory kind {}", op_name(op_.kind), buffer.memory);
    if (buffer.count > 0 && buffer.data == nullptr) {
      refuse("{}: the {} buffer is NULL but has {} elements", op_name(op_.kind), which, buffer.count);
    }
    if (exceeds_memory(buffer.count, 1)) {
      refuse("{}: the {} buffer of {} elements is too large", op_name(op_.kind), which, buffer.count);
    }
  }

  void check_reduction() const {
    if (!reduces(op_.kind)) return;
    if (op_.reduce_op >= BP_REDUCE_OP_COUNT)
      refuse("{}: there is no reduce operation {}", op_name(op_.kind), op_.reduce_op);
    if (!reducible(op_.dtype, op_.reduce_op)) {
      refuse("{}: {} is not defined for {}", op_name(op_.kind), reduce_op_name(op_.reduce_op), dtype_name(op_.dtype));
    }
    if (op_.reduce_op == BP_AVG && (op_.kind == BP_SCAN || op_.kind == BP_EXSCAN)) {
      refuse("{}: the reduce op avg has no meaning; use sum", op_name(op_.kind));
    }
    if (op_.reduce_op == BP_PREMUL_SUM && op_.scalar == nullptr) {
      refuse("{}: premul_sum needs bp_op.scalar", op_name(op_.kind));
    }
  }

  void check_root_or_peer() {
    const bool rooted = is_rooted();
    if (!rooted && collective(op_.kind)) return;
    const int32_t other = rooted ? op_.root : op_.peer;
    operation_.root_or_peer = other;
    if (!rooted && op_.tag >= UINT64_C(1) << 32 && !(op_.kind == BP_RECV && op_.tag == BP_ANY_TAG)) {
      refuse("{}: tag {} is not below 2^32", op_name(op_.kind), op_.tag);
    }
    if (op_.kind == BP_RECV && other == BP_ANY_SOURCE) return;
    if (other < 0 || static_cast<uint64_t>(other) >= world_) {
      refuse("{}: {} {} is not a rank of this group of {}", op_name(op_.kind), rooted ? "root" : "peer", other, world_);
    }
  }

  bool is_rooted() const {
    constexpr uint64_t kRooted = BP_BIT(BP_BROADCAST) | BP_BIT(BP_REDUCE) | BP_BIT(BP_GATHER) | BP_BIT(BP_GATHERV) |
                                 BP_BIT(BP_SCATTER) | BP_BIT(BP_SCATTERV);
    return (kRooted & BP_BIT(op_.kind)) != 0;
  }
  bool at_root() const { return op_.root == rank_; }

  void expect(const bp_buffer& buffer, const char* which, uint64_t count) const {
    if (buffer.count != count) {
      refuse("{}: the {} has {} elements, expected {}", op_name(op_.kind), which, buffer.count, count);
    }
  }

  uint64_t blocks(uint64_t count) const {
    if (exceeds_memory(count, world_)) refuse("{}: {} elements per rank are too many", op_name(op_.kind), count);
    return count * world_;
  }

  // Input and output may coincide at the `in_place` addresses. Otherwise they must not overlap.
  void check_overlap(const void* in_place_input, const void* in_place_output) const {
    const auto* in = static_cast<const char*>(op_.input.data);
    const auto* out = static_cast<const char*>(op_.output.data);
    if (op_.input.count == 0 || op_.output.count == 0 || op_.input.memory != op_.output.memory) return;
    if (in == in_place_input && out == in_place_output) return;
    if (in < out + op_.output.count * size_ && out < in + op_.input.count * size_) {
      refuse("{}: input and output overlap without being exactly in place", op_name(op_.kind));
    }
  }

  // Checks counts against the buffer and completes displacements.
  void check_blocks(const Side& side) const {
    if (side.counts == nullptr) refuse("{}: {} counts are missing", op_name(op_.kind), side.name);
    if (side.displs == nullptr) {
      side.own_displs.resize(world_);
      uint64_t next = 0;
      for (uint64_t r = 0; r < world_; ++r) {
        side.own_displs[r] = next;
        next += side.counts[r];
        if (next < side.counts[r]) refuse("{}: the {} counts overflow", op_name(op_.kind), side.name);
      }
      side.displs = side.own_displs.data();
    }
    const uint64_t size = side.buffer.count;
    for (uint64_t r = 0; r < world_; ++r) {
      if (side.counts[r] <= size && side.displs[r] <= size - side.counts[r]) continue;
      refuse("{}: rank {}'s block of the {} ({} elements at {}) is not inside its {} elements", op_name(op_.kind), r,
             side.name, side.counts[r], side.displs[r], size);
    }
  }

  void shape() {
    switch (op_.kind) {
      case BP_BROADCAST:
        return broadcast();
      case BP_REDUCE:
      case BP_ALL_REDUCE:
      case BP_SCAN:
      case BP_EXSCAN:
        return reduce();
      case BP_GATHER:
      case BP_GATHERV:
      case BP_ALL_GATHER:
      case BP_ALL_GATHERV:
        return blocked(input(), output());
      case BP_SCATTER:
      case BP_SCATTERV:
      case BP_REDUCE_SCATTER:
      case BP_REDUCE_SCATTERV:
        return blocked(output(), input());
      case BP_ALL_TO_ALL:
      case BP_ALL_TO_ALLV:
        return all_to_all();
      case BP_SEND:
        operation_.count = op_.input.count;
        op_.output = {};
        return clear_counts();
      default:  // BP_RECV
        operation_.count = op_.output.count;
        op_.input = {};
        return clear_counts();
    }
  }

  // The root passes its data as input, as output, or as both. The backend gets the same buffer as both.
  void broadcast() {
    clear_counts();
    if (at_root()) {
      if (op_.input.data == nullptr) op_.input = op_.output;
      if (op_.output.data == nullptr) op_.output = op_.input;
      if (op_.input.data != op_.output.data) refuse("broadcast: the root's input and output are different buffers");
      expect(op_.output, "output", op_.input.count);
    } else {
      op_.input = {};
    }
    operation_.count = operation_.per_rank = op_.output.count;
  }

  void reduce() {
    clear_counts();
    operation_.count = operation_.per_rank = op_.input.count;
    if (op_.kind == BP_REDUCE && !at_root()) {
      op_.output = {};
      return;
    }
    expect(op_.output, "output", op_.input.count);
    check_overlap(op_.output.data, op_.input.data);
  }

  // `one` is this rank's block, `all` has a block per rank; for rooted kinds only the root has `all`. Not inlined, so
  // that shape() is.
  [[gnu::noinline]] void blocked(const Side& one, const Side& all) const {
    operation_.count = operation_.per_rank = one.buffer.count;
    one.counts = one.displs = nullptr;
    if (is_rooted() && !at_root()) {
      all.buffer = {};
      all.counts = all.displs = nullptr;
      return;
    }
    uint64_t offset = 0;
    if ((kVariants & BP_BIT(op_.kind)) != 0) {
      check_blocks(all);
      expect(one.buffer, one.name, all.counts[rank_]);
      offset = all.displs[rank_];
    } else {
      all.counts = all.displs = nullptr;
      expect(all.buffer, all.name, blocks(one.buffer.count));
      offset = static_cast<uint64_t>(rank_) * one.buffer.count;
    }
    const void* const own_block = static_cast<const char*>(all.buffer.data) + offset * size_;
    const bool gathers = &all.buffer == &op_.output;
    gathers ? check_overlap(own_block, all.buffer.data) : check_overlap(all.buffer.data, own_block);
  }

  void all_to_all() {
    if (op_.kind == BP_ALL_TO_ALLV) {
      check_blocks(input());
      check_blocks(output());
      if (op_.in_counts[rank_] != op_.out_counts[rank_]) {
        refuse("all_to_allv: rank {} sends itself {} elements and receives {}", rank_, op_.in_counts[rank_],
               op_.out_counts[rank_]);
      }
      operation_.count = op_.input.count;
      return check_overlap(nullptr, nullptr);
    }
    clear_counts();
    if (op_.input.count % world_ != 0) {
      refuse("all_to_all: the input's {} elements cannot be divided by {} ranks", op_.input.count, world_);
    }
    expect(op_.output, "output", op_.input.count);
    operation_.count = operation_.per_rank = op_.input.count / world_;
    check_overlap(op_.output.data, op_.input.data);
  }

  const int32_t rank_;
  const uint64_t world_;
  uint64_t size_ = 1;  // bytes of an element
  Operation& operation_;
  bp_op& op_;
};

}  // namespace

void validate(const bp_op& op, int32_t rank, int32_t world_size, Operation* operation) {
  Validation(op, rank, world_size, operation).run();
}

std::string describe(const Operation& operation) {
  const bp_op& op = operation.op;
  if (op.kind == BP_BARRIER) return "barrier";
  const int32_t rank = operation.root_or_peer;
  std::string text = fmt::format("{} ({} x {})", op_name(op.kind), dtype_name(op.dtype), operation.count);
  if (op.kind == BP_SEND) return fmt::format("{} to rank {}", text, rank);
  if (op.kind == BP_RECV && rank == BP_ANY_SOURCE) return text + " from any rank";
  if (op.kind == BP_RECV) return fmt::format("{} from rank {}", text, rank);
  return rank < 0 ? text : fmt::format("{} with root {}", text, rank);
}

}  // namespace backplane::core
