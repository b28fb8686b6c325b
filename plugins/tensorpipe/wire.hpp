// SPDX-License-Identifier: Apache-2.0
//
// Encoding of RPC messages. A small message is stored in TensorPipe's descriptor as a whole (inline), which saves an
// operation on both sides and allows sending without a pipe. A small payload is inline, too. Larger payloads and small
// buffers become TensorPipe payloads, which follow the descriptor. Large buffers become tensors, which its channels
// carry.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/sdk/block.hpp"
#include "backplane/sdk/rpc.hpp"
#include "device_maps.hpp"
#include "endpoint.hpp"

namespace backplane::tensorpipe {

inline constexpr uint64_t kTensorSize = 32 << 10;  // smallest tensor
inline constexpr uint64_t kInlineSize = 8 << 10;   // largest inline message or payload
inline constexpr uint64_t kMaxBuffers = 65536;

inline constexpr int32_t kOnHost = -1;  // instead of a device number

// A position in the messages sent to a worker on express connections: the number of the connection, and of messages
// sent on it so far. Pipes are numbered from 1 in the order of creation; an express connection has the number of its
// pipe.
struct ExpressPosition {
  uint64_t express = 0;  // 0: unknown
  uint64_t messages = 0;
};

// Host copies of the buffers of a message with device buffers.
struct Staged {
  std::vector<bp_buffer> buffers;  // all in host memory
  std::vector<int32_t> devices;    // destination of each buffer at the receiver, or kOnHost
  std::vector<std::shared_ptr<std::byte>> memory;
};

// A message that is to be sent.
struct Outgoing {
  explicit Outgoing(sdk::RpcMessage given) : message(std::move(given)) {}

  sdk::RpcMessage message;
  bool has_devices = false;        // some buffers are in device memory
  std::unique_ptr<Staged> staged;  // set once the buffers have been copied
};

// Encodes a message. The receiver confirms messages without an id, usually goodbyes, with an empty message on the same
// pipe, so that the sender does not close it before they have been read: on close TensorPipe drops received data.
// `staged` replaces the message's buffers; NULL: they are in host memory. Throws sdk::Failure.
::tensorpipe::Message to_tensorpipe(const sdk::RpcMessage& message, const Token& receiver, int32_t from,
                                    const Staged* staged = nullptr, const ExpressPosition& express_position = {});

// Whether the whole message is sent inline. Never with device buffers.
bool is_small(const sdk::RpcMessage& message);

// A message that is being received, with its memory.
class IncomingMessage {
 public:
  // The devices of this worker to which a sender may send.
  using AllowedDevices = std::function<const DeviceSet&(int32_t from)>;
  // Allocates device memory with a copy of the data.
  using ToDevice = std::function<std::shared_ptr<void>(int device, const void* data, uint64_t bytes)>;

  // Throws sdk::Failure (BP_INVALID) if it is malformed, not of this job, or larger than `max_bytes`. Its peer_rank is
  // the sender if that is authenticated.
  IncomingMessage(::tensorpipe::Descriptor descriptor, const Token& own, int32_t world_size, uint64_t max_bytes,
                  sdk::BlockPool* pool, const AllowedDevices& allowed_devices);

  int32_t from() const { return from_; }
  bool wants_receipt() const { return wants_receipt_; }
  const ExpressPosition& express_position() const { return express_position_; }
  bool is_inline() const { return memory_.empty(); }             // nothing follows the descriptor
  bool has_devices() const { return !staged_buffers_.empty(); }  // some buffers are still to be copied to devices
  // Call when all data have arrived, if has_devices(). Exceptions of `to_device` pass through.
  void place(const ToDevice& to_device);
  const ::tensorpipe::Allocation& allocation() const { return allocation_; }
  std::string_view payload() const { return payload_; }
  const std::vector<bp_buffer>& buffers() const { return buffers_; }

 private:
  void read_buffers(const ::tensorpipe::Descriptor& descriptor, std::string_view sizes, size_t payload);
  void read_inline(std::string_view sizes, size_t at);
  void read_devices(std::string_view devices, const DeviceSet& open);

  int32_t from_ = -1;
  bool wants_receipt_ = false;
  ExpressPosition express_position_;
  std::vector<std::shared_ptr<void>> memory_;
  std::string metadata_;  // of the descriptor; holds the inline parts
  ::tensorpipe::Allocation allocation_;
  std::string_view payload_;
  std::vector<bp_buffer> buffers_;
  std::vector<size_t> staged_buffers_;  // indices of the device buffers that are still in host memory
};

}  // namespace backplane::tensorpipe
