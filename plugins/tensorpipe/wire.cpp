// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include <cstring>
#include <unordered_map>
#include <utility>

namespace backplane::tensorpipe {
namespace {

// The header at the start of the metadata. It is followed by the buffer sizes (8 bytes each); by the device numbers (4
// bytes each) if any buffer goes to a device; by the buffers if the whole message is inline, each at a multiple of
// kAlignment; and by the payload if it is inline.
struct Head {
  Token token;
  int32_t from = -1;
  uint32_t buffers = 0;
  uint32_t wants_receipt = 0;
  uint32_t has = 0;  // flags of the parts that follow
  ExpressPosition express_position;
};
constexpr uint32_t kPayload = 1;
constexpr uint32_t kDevices = 2;
constexpr uint32_t kBuffers = 4;
constexpr size_t kAlignment = 16;  // alignment of a string's memory

bool is_tensor(uint64_t bytes) { return bytes >= kTensorSize; }

size_t aligned(size_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

// `from` is -1 until the sender is authenticated.
[[noreturn]] void refuse(const std::string& what, int32_t from) {
  const std::string whose = from < 0 ? "a message" : "a message of rank " + std::to_string(from);
  throw sdk::Failure(BP_INVALID, whose + " was refused: " + what, from);
}

}  // namespace

::tensorpipe::Message to_tensorpipe(const sdk::RpcMessage& message, const Token& receiver, int32_t from,
                                    const Staged* staged, const ExpressPosition& express_position) {
  const auto& buffers = staged == nullptr ? message.buffers() : staged->buffers;
  if (buffers.size() > kMaxBuffers) {
    throw sdk::Failure(BP_INVALID,
                       "a message has " + std::to_string(buffers.size()) + " buffers; pack them into fewer");
  }
  ::tensorpipe::Message out;
  const std::string_view payload = message.payload();
  const bool is_inline = staged == nullptr && is_small(message);
  const bool inlined = payload.size() <= kInlineSize;
  const Head head = {receiver,
                     from,
                     static_cast<uint32_t>(buffers.size()),
                     message.id() == 0 ? 1U : 0U,
                     (inlined ? kPayload : 0) | (staged != nullptr ? kDevices : 0) | (is_inline ? kBuffers : 0),
                     express_position};
  const size_t devices_size = staged == nullptr ? 0 : staged->devices.size() * sizeof(int32_t);
  uint64_t inline_size = inlined ? payload.size() : 0;
  if (is_inline) {
    for (const bp_buffer& buffer : buffers) inline_size += buffer.count + kAlignment;
  }
  out.metadata.reserve(sizeof(head) + buffers.size() * sizeof(uint64_t) + devices_size + inline_size);
  out.metadata.assign(reinterpret_cast<const char*>(&head), sizeof(head));
  if (!inlined) out.payloads.push_back({const_cast<char*>(payload.data()), payload.size(), ""});
  for (const bp_buffer& buffer : buffers) {
    if (buffer.memory != BP_HOST) {
      throw sdk::Failure(BP_UNSUPPORTED, "tensorpipe carries host and CUDA memory only; copy the buffer there");
    }
    out.metadata.append(reinterpret_cast<const char*>(&buffer.count), sizeof(buffer.count));
    if (is_inline) continue;  // the buffers follow all sizes
    if (is_tensor(buffer.count)) {
      out.tensors.push_back({::tensorpipe::CpuBuffer{buffer.data}, static_cast<size_t>(buffer.count), {}, ""});
    } else if (buffer.count > 0) {
      out.payloads.push_back({buffer.data, static_cast<size_t>(buffer.count), ""});
    }
  }
  if (devices_size > 0) out.metadata.append(reinterpret_cast<const char*>(staged->devices.data()), devices_size);
  for (const bp_buffer& buffer : buffers) {
    if (!is_inline || buffer.count == 0) continue;
    out.metadata.resize(aligned(out.metadata.size()));
    out.metadata.append(static_cast<const char*>(buffer.data), static_cast<size_t>(buffer.count));
  }
  if (inlined) out.metadata.append(payload);
  return out;
}

bool is_small(const sdk::RpcMessage& message) {
  uint64_t left = kInlineSize;
  if (message.payload().size() > left) return false;
  left -= message.payload().size();
  for (const bp_buffer& buffer : message.buffers()) {
    if (buffer.memory != BP_HOST || buffer.count > left || left - buffer.count < kAlignment) return false;
    left -= buffer.count + kAlignment;  // upper bound of the padding
  }
  return true;
}

IncomingMessage::IncomingMessage(::tensorpipe::Descriptor descriptor, const Token& own, int32_t world_size,
                                 uint64_t max_bytes, sdk::BlockPool* pool, const AllowedDevices& allowed_devices)
    : metadata_(std::move(descriptor.metadata)) {
  Head head;
  const std::string_view metadata = metadata_;
  if (metadata.size() < sizeof(head)) refuse("its header is truncated", -1);
  std::memcpy(&head, metadata.data(), sizeof(head));
  if (head.token != own) refuse("wrong token: its sender does not belong to this job", -1);
  if (head.from < 0 || head.from >= world_size) refuse("its sender is not a worker of this job", -1);
  from_ = head.from;
  wants_receipt_ = head.wants_receipt != 0;
  express_position_ = head.express_position;
  const uint64_t devices_at = sizeof(head) + head.buffers * sizeof(uint64_t);
  const uint64_t head_size = devices_at + ((head.has & kDevices) != 0 ? head.buffers * sizeof(int32_t) : 0);
  const bool inlined = (head.has & kPayload) != 0;
  const bool is_inline = (head.has & kBuffers) != 0;
  if (head.buffers > kMaxBuffers || metadata.size() < head_size ||
      (inlined ? metadata.size() - head_size > kInlineSize
               : metadata.size() != head_size || descriptor.payloads.empty())) {
    refuse("malformed descriptor", from_);
  }
  uint64_t total = 0;
  const auto add = [this, max_bytes, &total](uint64_t length) {
    if (length > max_bytes - total)
      refuse("it is larger than max_message_bytes allows: " + std::to_string(max_bytes), from_);
    total += length;
  };
  add(inlined ? metadata.size() - head_size : 0);
  const auto allocate = [this, pool](uint64_t bytes) { return memory_.emplace_back(pool->take(bytes)).get(); };
  for (const auto& payload : descriptor.payloads) {
    add(payload.length);
    allocation_.payloads.push_back({allocate(payload.length)});
  }
  for (const auto& tensor : descriptor.tensors) {
    add(tensor.length);
    allocation_.tensors.push_back({::tensorpipe::CpuBuffer{allocate(tensor.length)}});
  }
  if (is_inline) {
    if (!inlined || !memory_.empty() || devices_at < head_size) refuse("malformed descriptor", from_);
    read_inline(metadata.substr(sizeof(head), devices_at - sizeof(head)), head_size);
    return;
  }
  if (inlined) {
    payload_ = metadata.substr(head_size);
  } else {
    payload_ = {static_cast<const char*>(allocation_.payloads[0].data), descriptor.payloads[0].length};
  }
  read_buffers(descriptor, metadata.substr(sizeof(head), devices_at - sizeof(head)), inlined ? 0 : 1);
  if (devices_at < head_size) read_devices(metadata.substr(devices_at, head_size - devices_at), allowed_devices(from_));
}

// `sizes`: 8 bytes each. `payload`: index of the first payload that is a buffer.
void IncomingMessage::read_buffers(const ::tensorpipe::Descriptor& descriptor, std::string_view sizes, size_t payload) {
  size_t tensor = 0;
  for (; !sizes.empty(); sizes.remove_prefix(sizeof(uint64_t))) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, sizes.data(), sizeof(bytes));
    void* data = nullptr;
    if (is_tensor(bytes)) {
      if (tensor >= descriptor.tensors.size() || descriptor.tensors[tensor].length != bytes) {
        refuse("inconsistent sizes", from_);
      }
      data = allocation_.tensors[tensor++].buffer.unwrap<::tensorpipe::CpuBuffer>().ptr;
    } else if (bytes > 0) {
      if (payload >= descriptor.payloads.size() || descriptor.payloads[payload].length != bytes) {
        refuse("inconsistent sizes", from_);
      }
      data = allocation_.payloads[payload++].data;
    }
    buffers_.push_back({data, bytes, BP_HOST, 0});
  }
  if (payload != descriptor.payloads.size() || tensor != descriptor.tensors.size()) {
    refuse("it carries more buffers than it declares", from_);
  }
}

// Reads the buffers of an inline message from offset `at`, then the payload.
void IncomingMessage::read_inline(std::string_view sizes, size_t at) {
  for (; !sizes.empty(); sizes.remove_prefix(sizeof(uint64_t))) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, sizes.data(), sizeof(bytes));
    void* data = nullptr;
    if (bytes > 0) {
      at = aligned(at);
      if (at > metadata_.size() || bytes > metadata_.size() - at) refuse("inconsistent sizes", from_);
      data = metadata_.data() + at;
      at += bytes;
    }
    buffers_.push_back({data, bytes, BP_HOST, 0});
  }
  payload_ = std::string_view(metadata_).substr(at);
}

// `devices`: 4 bytes per buffer, chosen by the sender. Only devices named in the maps are accepted.
void IncomingMessage::read_devices(std::string_view devices, const DeviceSet& open) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    int32_t device = kOnHost;
    std::memcpy(&device, devices.data() + i * sizeof(device), sizeof(device));
    if (device == kOnHost) continue;
    if (!open.contains(device)) {
      refuse("no device map allows CUDA device " + std::to_string(device) + " of this worker for its sender", from_);
    }
    buffers_[i].memory = BP_CUDA;
    buffers_[i].device = device;
    if (buffers_[i].count > 0) staged_buffers_.push_back(i);
  }
}

void IncomingMessage::place(const ToDevice& to_device) {
  std::unordered_map<const void*, std::shared_ptr<void>*> copies;
  for (std::shared_ptr<void>& each : memory_) copies.emplace(each.get(), &each);
  for (const size_t index : staged_buffers_) {
    bp_buffer& buffer = buffers_[index];
    std::shared_ptr<void> placed = to_device(buffer.device, buffer.data, buffer.count);
    std::shared_ptr<void>& copy = *copies.at(buffer.data);
    buffer.data = placed.get();
    copy = std::move(placed);  // replaces the host memory
  }
  staged_buffers_.clear();
}

}  // namespace backplane::tensorpipe
