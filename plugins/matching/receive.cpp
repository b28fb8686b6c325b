// SPDX-License-Identifier: Apache-2.0
#include "receive.hpp"

#include <utility>

namespace backplane::matching {

bp_op byte_op(uint32_t kind, int32_t peer, uint64_t tag) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = BP_U8;
  op.peer = peer;
  op.tag = tag;
  op.timeout_ns = BP_NO_TIMEOUT;
  return op;
}

PersistentReceive::PersistentReceive(const sdk::Inner& inner, int32_t source, uint64_t tag, size_t size)
    : inner_(inner), from_(source), tag_(tag), buffer_(size) {}

PersistentReceive::Outcome PersistentReceive::poll() {
  if (failure_) return Outcome::kPending;
  try {
    if (!work_) {
      bp_op op = byte_op(BP_RECV, from_, tag_);
      op.output = {buffer_.data(), buffer_.size(), BP_HOST, 0};
      op.result = &result_;
      work_ = inner_.submit(op);
    }
    if (work_ && !work_->wait(0)) {
      has_failed_ = false;
      return Outcome::kPending;
    }
  } catch (const sdk::Failure& failure) {
    work_.reset();
    // From any source, no peer is left if two in a row fail.
    if (from_ == BP_ANY_SOURCE && !std::exchange(has_failed_, true)) return Outcome::kRetry;
    failure_.emplace(failure);
    return Outcome::kEnded;
  }
  work_.reset();
  has_failed_ = false;
  return Outcome::kMessage;
}

}  // namespace backplane::matching
