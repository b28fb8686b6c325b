// SPDX-License-Identifier: Apache-2.0
//
// Our messages as TensorPipe's: a small one lies in the descriptor as a whole, which spares both sides an operation,
// and can go without a pipe; so does a small payload. Larger ones and small buffers are payloads, in its words, which
// follow the descriptor; large buffers are tensors, which its channels carry.
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
#include "card.hpp"
#include "device_maps.hpp"

namespace backplane::tensorpipe {

inline constexpr uint64_t kTensorSize = 32 << 10;  // the smallest tensor
inline constexpr uint64_t kInsideSize = 8 << 10;   // the largest payload, or message, in a descriptor
inline constexpr uint64_t kMostBuffers = 65536;

inline constexpr int32_t kOnHost = -1;  // where a buffer arrives, instead of a device

// Of what was sent to the same worker before: so many messages along the express connection of this number. Pipes are
// numbered from 1 on, in the order in which they were made, and the express connection beside one has its number.
struct Before {
  uint64_t express = 0;  // that is not said
  uint64_t messages = 0;
};

// What stands for the buffers of a message that has some on devices.
struct Staged {
  std::vector<bp_buffer> buffers;  // all on the host
  std::vector<int32_t> devices;    // the receiver's, of each buffer; kOnHost
  std::vector<std::shared_ptr<std::byte>> memory;
};

// A message until it is sent.
struct Outgoing {
  explicit Outgoing(sdk::RpcMessage given) : message(std::move(given)) {}

  sdk::RpcMessage message;
  bool has_devices = false;        // some of its buffers are on devices
  std::unique_ptr<Staged> staged;  // once they were copied
};

// Messages that nobody asks about (id 0) are a worker's last words, as a rule. Their receiver confirms them along the
// same pipe, with an empty message, so that the sender does not close it before they were read: TensorPipe gives up
// what has arrived with what has not.
// `staged`: instead of the message's own buffers; NULL: they are on the host. Throws sdk::Failure.
::tensorpipe::Message to_tensorpipe(const sdk::RpcMessage& message, const Token& receiver, int32_t from,
                                    const Staged* staged = nullptr, const Before& before = {});

// Whether all of a message lies in its descriptor. Not if that is on a device.
bool is_small(const sdk::RpcMessage& message);

// A message that is being received, and the memory for it.
class Arrival {
 public:
  // The devices of this worker that a sender may name.
  using OpenTo = std::function<const DeviceSet&(int32_t from)>;
  // Memory of a device, with this in it.
  using ToDevice = std::function<std::shared_ptr<void>(int device, const void* data, uint64_t bytes)>;

  // Throws sdk::Failure (BP_INVALID) if it is none of ours, or larger than `most` bytes; its peer_rank is the sender,
  // if that is proven.
  Arrival(::tensorpipe::Descriptor descriptor, const Token& own, int32_t world_size, uint64_t most,
          sdk::BlockPool* pool, const OpenTo& open_to);

  int32_t from() const { return from_; }
  bool wants_receipt() const { return wants_receipt_; }
  const Before& before() const { return before_; }
  bool is_whole() const { return memory_.empty(); }           // nothing follows the descriptor
  bool has_devices() const { return !for_devices_.empty(); }  // some of its buffers are still to be placed there
  // Once all is there, with has_devices(). What `to_device` throws ends it.
  void place(const ToDevice& to_device);
  const ::tensorpipe::Allocation& allocation() const { return allocation_; }
  std::string_view payload() const { return payload_; }
  const std::vector<bp_buffer>& buffers() const { return buffers_; }

 private:
  void read_buffers(const ::tensorpipe::Descriptor& descriptor, std::string_view sizes, size_t payload);
  void read_inside(std::string_view sizes, size_t at);
  void read_devices(std::string_view devices, const DeviceSet& open);

  int32_t from_ = -1;
  bool wants_receipt_ = false;
  Before before_;
  std::vector<std::shared_ptr<void>> memory_;
  std::string metadata_;  // of the descriptor, with what of the message is in there
  ::tensorpipe::Allocation allocation_;
  std::string_view payload_;
  std::vector<bp_buffer> buffers_;
  std::vector<size_t> for_devices_;  // which of them are still on the host
};

}  // namespace backplane::tensorpipe
