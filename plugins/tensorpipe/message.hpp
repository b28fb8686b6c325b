// SPDX-License-Identifier: Apache-2.0
//
// Our messages as TensorPipe's: a small payload lies in the descriptor itself, which spares both sides an operation;
// larger ones and small buffers are payloads, in its words, which follow the descriptor; large buffers are tensors,
// which its channels carry.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backplane/sdk/block.hpp"
#include "backplane/sdk/rpc.hpp"
#include "card.hpp"

namespace backplane::tensorpipe_plugin {

inline constexpr uint64_t kTensorSize = 32 << 10;  // the smallest tensor
inline constexpr uint64_t kInsideSize = 1 << 10;   // the largest payload in a descriptor
inline constexpr uint64_t kMostBuffers = 65536;

// Messages that nobody asks about (id 0) are a worker's last words, as a rule. Their receiver confirms them along the
// same pipe, with an empty message, so that the sender does not close it before they were read: TensorPipe gives up
// what has arrived with what has not.
tensorpipe::Message to_tensorpipe(const sdk::RpcMessage& message, const Token& receiver, int32_t from);

// A message that is being received, and the memory for it.
class Arrival {
 public:
  // Throws sdk::Failure (BP_INVALID) if it is none of ours, or larger than `most` bytes; its peer_rank is the sender,
  // if that is proven.
  Arrival(tensorpipe::Descriptor descriptor, const Token& own, int32_t world_size, uint64_t most, sdk::BlockPool* pool);

  int32_t from() const { return from_; }
  bool wants_receipt() const { return wants_receipt_; }
  bool is_whole() const { return memory_.empty(); }  // nothing follows the descriptor
  const tensorpipe::Allocation& allocation() const { return allocation_; }
  std::string_view payload() const { return payload_; }
  const std::vector<bp_buffer>& buffers() const { return buffers_; }

 private:
  int32_t from_ = -1;
  bool wants_receipt_ = false;
  std::vector<std::shared_ptr<std::byte>> memory_;
  std::string metadata_;  // of the descriptor, with the payload if it is in there
  tensorpipe::Allocation allocation_;
  std::string_view payload_;
  std::vector<bp_buffer> buffers_;
};

}  // namespace backplane::tensorpipe_plugin
