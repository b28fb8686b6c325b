// SPDX-License-Identifier: Apache-2.0
#include "group/lists.hpp"

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

constexpr uint64_t kMostListBytes = UINT64_C(1) << 48;  // of one buffer

class List {
 public:
  List(const bp_op& op, const char* name, const bp_buffer* buffers, int32_t world_size)
      : buffers_(buffers, buffers + world_size), name_(name), bytes_(buffers[0].count * dtype_size(op.dtype)) {
    for (const bp_buffer& each : buffers_) {
      if (each.count != buffers_[0].count || each.memory != buffers_[0].memory || each.device != buffers_[0].device) {
        fail(BP_INVALID, "{}: the buffers of `{}` differ in count, memory or device", op_name(op.kind), name);
      }
      if (each.count > kMostListBytes / sizeof(std::max_align_t)) {
        fail(BP_INVALID, "{}: a buffer of `{}` has {} elements, which is too many", op_name(op.kind), name, each.count);
      }
      if (each.count > 0 && each.data == nullptr) {
        fail(BP_INVALID, "{}: a buffer of `{}` is NULL but has {} elements", op_name(op.kind), name, each.count);
      }
    }
  }

  // All of them as one buffer: where they lie, if they follow in one run, else in memory of its own.
  bp_buffer whole(uint32_t kind) {
    bp_buffer all = buffers_[0];
    all.count *= buffers_.size();
    if (is_one_run()) return all;
    if (all.memory != BP_HOST) {
      fail(BP_UNSUPPORTED, "{}: the buffers of `{}` do not follow in one run; let them, or use host memory",
           op_name(kind), name_);
    }
    copy_ = std::make_unique_for_overwrite<std::max_align_t[]>(bytes_ * buffers_.size() / sizeof(std::max_align_t) + 1);
    all.data = copy_.get();
    return all;
  }
  void read() const {
    for (size_t i = 0; copy_ && i < buffers_.size(); ++i) std::memcpy(part(i), buffers_[i].data, bytes_);
  }
  void write() const {
    for (size_t i = 0; copy_ && i < buffers_.size(); ++i) std::memcpy(buffers_[i].data, part(i), bytes_);
  }

 private:
  bool is_one_run() const {
    for (size_t i = 0; i < buffers_.size() && bytes_ > 0; ++i) {
      if (static_cast<const std::byte*>(buffers_[i].data) !=
          static_cast<const std::byte*>(buffers_[0].data) + i * bytes_)
        return false;
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

Gathered gather_lists(const bp_op& op, int32_t rank, int32_t world_size, const bp_buffer* inputs,
                      const bp_buffer* outputs) {
  constexpr uint64_t kIn = BP_BIT(BP_SCATTER) | BP_BIT(BP_ALL_TO_ALL) | BP_BIT(BP_REDUCE_SCATTER);
  constexpr uint64_t kOut = BP_BIT(BP_GATHER) | BP_BIT(BP_ALL_GATHER) | BP_BIT(BP_ALL_TO_ALL);
  constexpr uint64_t kRooted = BP_BIT(BP_SCATTER) | BP_BIT(BP_GATHER);
  const uint64_t kind = op.kind < BP_OP_COUNT ? BP_BIT(op.kind) : 0;
  if (((kIn | kOut) & kind) == 0) fail(BP_INVALID, "{} takes no lists of buffers", op_name(op.kind));
  const bool is_concerned = (kRooted & kind) == 0 || op.root == rank;
  if (inputs != nullptr && (kIn & kind) == 0) fail(BP_INVALID, "{}: `inputs` must be NULL", op_name(op.kind));
  if (outputs != nullptr && (kOut & kind) == 0) fail(BP_INVALID, "{}: `outputs` must be NULL", op_name(op.kind));
  if (op.dtype >= BP_DTYPE_COUNT) fail(BP_INVALID, "{}: there is no dtype {}", op_name(op.kind), op.dtype);
  Gathered gathered = {op, {}};
  std::shared_ptr<List> in;
  std::shared_ptr<List> out;
  if (inputs != nullptr && is_concerned) {
    in = std::make_shared<List>(op, "inputs", inputs, world_size);
    gathered.op.input = in->whole(op.kind);
    in->read();
  }
  if (outputs != nullptr && is_concerned) {
    out = std::make_shared<List>(op, "outputs", outputs, world_size);
    gathered.op.output = out->whole(op.kind);
  }
  gathered.deliver = [in, out] {
    if (out) out->write();
  };
  return gathered;
}

}  // namespace backplane::core
