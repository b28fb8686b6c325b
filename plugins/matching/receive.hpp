// SPDX-License-Identifier: Apache-2.0
//
// A receive in the wrapped group that is posted again after each message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backplane/sdk/layer.hpp"

namespace backplane::matching {

// A send or receive of bytes in host memory, without a timeout.
bp_op byte_op(uint32_t kind, int32_t peer, uint64_t tag);

class PersistentReceive {
 public:
  enum class Outcome {
    kPending,
    kMessage,
    kRetry,  // from any source: a rank that was sending is lost. Posted again
    kEnded   // no further message comes
  };

  // `source`: a rank or BP_ANY_SOURCE. `size`: of the largest message, bytes.
  PersistentReceive(const sdk::Inner& inner, int32_t source, uint64_t tag, size_t size);

  // Does not block. Returns kPending for ever after kEnded.
  Outcome poll();
  int32_t peer() const { return from_; }  // `source`
  // The message of the last poll, until the next one, and its sender.
  int32_t sender() const { return result_.source; }
  std::span<const std::byte> message() const { return {buffer_.data(), result_.bytes}; }
  // Why it has ended.
  const std::optional<sdk::Failure>& failure() const { return failure_; }
  sdk::Work* work() const { return work_.get(); }  // null if not in flight

 private:
  const sdk::Inner& inner_;
  const int32_t from_;
  const uint64_t tag_;
  std::vector<std::byte> buffer_;
  bp_result result_ = {sizeof(bp_result), -1, 0, 0};
  bool has_failed_ = false;  // at the last attempt
  std::optional<sdk::Failure> failure_;
  std::unique_ptr<sdk::Work> work_;  // last: uses the buffer
};

}  // namespace backplane::matching
