// SPDX-License-Identifier: Apache-2.0
#include "rpc_wire.hpp"

#include <cstring>
#include <utility>

namespace backplane::zmq {
namespace {

constexpr uint64_t kAlignment = 16;

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

struct Part {
  void* data = nullptr;
  uint64_t bytes = 0;
};

std::vector<Part> parts_of(const sdk::RpcMessage& message) {
  std::vector<Part> parts = {{const_cast<char*>(message.payload().data()), message.payload().size()}};
  for (const bp_buffer& buffer : message.buffers()) parts.push_back({buffer.data, buffer.count});
  return parts;
}

// A frame that refers to the part. libzmq releases the message on any thread.
::zmq::message_t frame_of(const Part& part, const std::shared_ptr<Outgoing>& message) {
  auto owner = std::make_unique<std::shared_ptr<Outgoing>>(message);
  const auto release = [](void*, void* hint) { delete static_cast<std::shared_ptr<Outgoing>*>(hint); };
  ::zmq::message_t frame(part.data, part.bytes, release, owner.get());
  owner.release();  // NOLINT(bugprone-unused-return-value): the frame deletes it
  return frame;
}

}  // namespace

std::vector<::zmq::message_t> compose(RpcHeader header, const std::shared_ptr<Outgoing>& message) {
  const std::vector<Part> parts = message ? parts_of(message->message) : std::vector<Part>();
  header.parts = static_cast<uint32_t>(parts.size());
  uint64_t end = aligned(sizeof(header) + parts.size() * sizeof(uint64_t));
  for (const Part& part : parts) end += part.bytes > kInlineSize ? 0 : aligned(part.bytes);
  std::vector<::zmq::message_t> frames;
  std::byte* const first = frames.emplace_back(end).data<std::byte>();
  std::memset(first, 0, end);  // the padding between the parts
  std::memcpy(first, &header, sizeof(header));
  uint64_t offset = aligned(sizeof(header) + parts.size() * sizeof(uint64_t));
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    std::memcpy(first + sizeof(header) + i * sizeof(uint64_t), &part.bytes, sizeof(part.bytes));
    if (part.bytes > kInlineSize) {
      frames.push_back(frame_of(part, message));
    } else if (part.bytes > 0) {
      std::memcpy(first + offset, part.data, part.bytes);
      offset += aligned(part.bytes);
    }
  }
  return frames;
}

std::optional<RpcHeader> parse_header(const ::zmq::message_t& frame, const Token& own, int32_t world_size) {
  RpcHeader header;
  if (frame.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, frame.data(), sizeof(header));
  if (header.magic != kRpcMagic || header.token != own) return std::nullopt;
  if (header.from < 0 || header.from >= world_size) return std::nullopt;
  if (header.kind < RpcKind::kMessage || header.kind > RpcKind::kReceiptRequest) return std::nullopt;
  const bool has_parts = header.kind == RpcKind::kMessage;
  if (has_parts ? header.parts == 0 || header.parts > kMaxParts : header.parts != 0) return std::nullopt;
  return header;
}

std::shared_ptr<Incoming> parse_message(const RpcHeader& header, std::vector<::zmq::message_t> frames,
                                        uint64_t max_bytes) {
  auto incoming = std::make_shared<Incoming>();
  incoming->from = header.from;
  incoming->frames = std::move(frames);
  ::zmq::message_t& first = incoming->frames.front();
  uint64_t offset = aligned(sizeof(header) + header.parts * sizeof(uint64_t));
  if (first.size() < offset) return nullptr;
  size_t next = 1;  // frame
  uint64_t total = 0;
  for (uint32_t i = 0; i < header.parts; ++i) {
    Part part;
    std::memcpy(&part.bytes, first.data<std::byte>() + sizeof(header) + i * sizeof(uint64_t), sizeof(part.bytes));
    if (part.bytes > max_bytes - total) return nullptr;
    total += part.bytes;
    if (part.bytes > kInlineSize) {
      if (next == incoming->frames.size() || incoming->frames[next].size() != part.bytes) return nullptr;
      part.data = incoming->frames[next++].data();
    } else {
      if (aligned(part.bytes) > first.size() - offset) return nullptr;
      part.data = first.data<std::byte>() + offset;
      offset += aligned(part.bytes);
    }
    if (i == 0) {
      incoming->payload = {static_cast<const char*>(part.data), part.bytes};
    } else {
      incoming->buffers.push_back({part.data, part.bytes, BP_HOST, 0});
    }
  }
  return next == incoming->frames.size() ? incoming : nullptr;
}

}  // namespace backplane::zmq
