// SPDX-License-Identifier: Apache-2.0
#include "group/buffer_list.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "error.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kMaxListBytes = UINT64_C(1) << 48;  // of one buffer

class BufferList {
 public:
  BufferList(const bp_op& op, const char* name, const bp_buffer* buffers, int32_t world_size)
      : buffers_(buffers, buffers + world_size), name_(name), bytes_(buffers[0].count * dtype_size(op.dtype)) {
    for (const bp_buffer& each : buffers_) {
      if (each.count != buffers_[0].count || each.memory != buffers_[0].memory || each.device != buffers_[0].device) {
        fail(BP_INVALID, "{}: the buffers of `{}` differ in count, memory or device", op_name(op.kind), name);
      }
      if (each.count > kMaxListBytes / sizeof(std::max_align_t)) {
        fail(BP_INVALID, "{}: a buffer of `{}` has {} elements, which is too many", op_name(op.kind), name, each.count);
      }
      if (each.count > 0 && each.data == nullptr) {
        fail(BP_INVALID, "{}: a buffer of `{}` is NULL but has {} elements", op_name(op.kind), name, each.count);
      }
    }
  }

  // One buffer for all: the buffers themselves if they are adjacent, otherwise memory of this object.
  bp_buffer packed(uint32_t kind) {
    bp_buffer all = buffers_[0];
    all.count *= buffers_.size();
    if (are_adjacent()) return all;
    if (all.memory != BP_HOST) {
      fail(BP_UNSUPPORTED,
           "{}: the buffers of `{}` are not adjacent in device memory; make them adjacent, or use host memory",
           op_name(kind), name_);
    }
    copy_ = std::make_unique_for_overwrite<std::max_align_t[]>(bytes_ * buffers_.size() / sizeof(std::max_align_t) + 1);
    all.data = copy_.get();
    return all;
  }
  void pack() const {
    for (size_t i = 0; copy_ && i < buffers_.size(); ++i) std::memcpy(part(i), buffers_[i].data, bytes_);
  }
  void unpack() const {
    for (size_t i = 0; copy_ && i < buffers_.size(); ++i) std::memcpy(buffers_[i].data, part(i), bytes_);
  }

 private:
  bool are_adjacent() const {
    for (size_t i = 0; i < buffers_.size() && bytes_ > 0; ++i) {
      const auto* const first = static_cast<const std::byte*>(buffers_[0].data);
      if (buffers_[i].data != first + i * bytes_) return false;
    }
    return true;
  }
  std::byte* part(size_t i) const { return reinterpret_cast<std::byte*>(copy_.get()) + i * bytes_; }

  const std::vector<bp_buffer> buffers_;
  const char* const name_;
  const uint64_t bytes_;  // of one buffer
  std::unique_ptr<std::max_align_t[]> copy_;
};

}  // namespace

PackedOp pack_lists(const bp_op& op, int32_t rank, int32_t world_size, const bp_buffer* inputs,
                    const bp_buffer* outputs) {
  constexpr uint64_t kIn = BP_BIT(BP_SCATTER) | BP_BIT(BP_ALL_TO_ALL) | BP_BIT(BP_REDUCE_SCATTER);
  constexpr uint64_t kOut = BP_BIT(BP_GATHER) | BP_BIT(BP_ALL_GATHER) | BP_BIT(BP_ALL_TO_ALL);
  constexpr uint64_t kRooted = BP_BIT(BP_SCATTER) | BP_BIT(BP_GATHER);
  const uint64_t kind = op.kind < BP_OP_COUNT ? BP_BIT(op.kind) : 0;
  if (((kIn | kOut) & kind) == 0) fail(BP_INVALID, "{} takes no lists of buffers", op_name(op.kind));
  const bool uses_list = (kRooted & kind) == 0 || op.root == rank;
  if (inputs != nullptr && (kIn & kind) == 0) fail(BP_INVALID, "{}: `inputs` must be NULL", op_name(op.kind));
  if (outputs != nullptr && (kOut & kind) == 0) fail(BP_INVALID, "{}: `outputs` must be NULL", op_name(op.kind));
  if (op.dtype >= BP_DTYPE_COUNT) fail(BP_INVALID, "{}: there is no dtype {}", op_name(op.kind), op.dtype);
  PackedOp result = {op, {}};
  std::shared_ptr<BufferList> in;
  std::shared_ptr<BufferList> out;
  if (inputs != nullptr && uses_list) {
    in = std::make_shared<BufferList>(op, "inputs", inputs, world_size);
    result.op.input = in->packed(op.kind);
    in->pack();
  }
  if (outputs != nullptr && uses_list) {
    out = std::make_shared<BufferList>(op, "outputs", outputs, world_size);
    result.op.output = out->packed(op.kind);
  }
  result.unpack = [in, out] {
    if (out) out->unpack();
  };
  return result;
}

}  // namespace backplane::core
