// SPDX-License-Identifier: Apache-2.0
//
// Copies of operations, by the rule COPIES of abi/version.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backplane/abi/op.h"

namespace backplane::base {

// Copies the fields that these headers know, and sets the copy's size to theirs. Counts, displacements and scalar still
// point to the caller's memory, which is valid until submit returns.
inline bp_op known_part(const bp_op& op) {
  bp_op copy = {};
  const size_t size = std::min<size_t>(op.struct_size, sizeof copy);
  std::memcpy(&copy, &op, size);
  copy.struct_size = static_cast<uint32_t>(size);
  return copy;
}

// An operation that outlives submit: counts, displacements and scalar are copied. The buffers and `result` are not: the
// caller keeps them until the operation is terminal. BP_OP_SYNC is cleared, because submit does not wait for it.
class OwnedOp {
 public:
  // `world_size` elements of each list of counts or displacements are copied.
  OwnedOp(const bp_op& op, int32_t world_size) : op_(known_part(op)) {
    op_.flags &= ~static_cast<uint64_t>(BP_OP_SYNC);
    const uint64_t** const lists[] = {&op_.in_counts, &op_.in_displs, &op_.out_counts, &op_.out_displs};
    const auto size = static_cast<size_t>(world_size);
    size_t given = 0;
    for (const uint64_t** list : lists) given += *list == nullptr ? 0 : 1;
    counts_.reserve(given * size);  // the pointers below stay valid
    for (const uint64_t** list : lists) {
      if (*list == nullptr) continue;
      counts_.insert(counts_.end(), *list, *list + size);
      *list = counts_.data() + (counts_.size() - size);
    }
    if (op_.scalar != nullptr) op_.scalar = std::memcpy(scalar_, op_.scalar, bp_dtype_size(op_.dtype));
  }
  OwnedOp(const OwnedOp&) = delete;
  OwnedOp& operator=(const OwnedOp&) = delete;

  // Valid as long as this object.
  bp_op& get() { return op_; }
  const bp_op& get() const { return op_; }

 private:
  bp_op op_;
  std::vector<uint64_t> counts_;
  alignas(16) std::byte scalar_[16];  // one element of any dtype
};

}  // namespace backplane::base
