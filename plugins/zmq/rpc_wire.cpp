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

// Called by libzmq, on any thread.
void give_back_departure(void*, void* hint) { delete static_cast<std::shared_ptr<Departure>*>(hint); }

::zmq::message_t lend(const Part& part, const std::shared_ptr<Departure>& owner) {
  auto hint = std::make_unique<std::shared_ptr<Departure>>(owner);
  ::zmq::message_t frame(part.data, part.bytes, &give_back_departure, hint.get());
  hint.release();  // NOLINT(bugprone-unused-return-value): give_back_departure deletes it
  return frame;
}

}  // namespace

std::vector<::zmq::message_t> compose(RpcHeader header, const std::shared_ptr<Departure>& departure) {
  const std::vector<Part> parts = departure ? parts_of(departure->message) : std::vector<Part>();
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
      frames.push_back(lend(part, departure));
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
  if (header.kind < RpcKind::kMessage || header.kind > RpcKind::kQuestion) return std::nullopt;
  const bool has_parts = header.kind == RpcKind::kMessage;
  if (has_parts ? header.parts == 0 || header.parts > kMostParts : header.parts != 0) return std::nullopt;
  return header;
}

std::shared_ptr<RpcArrival> parse_message(const RpcHeader& header, std::vector<::zmq::message_t> frames,
                                          uint64_t most) {
  auto arrival = std::make_shared<RpcArrival>();
  arrival->from = header.from;
  arrival->frames = std::move(frames);
  ::zmq::message_t& first = arrival->frames.front();
  uint64_t offset = aligned(sizeof(header) + header.parts * sizeof(uint64_t));
  if (first.size() < offset) return nullptr;
  size_t next = 1;  // frame
  uint64_t total = 0;
  for (uint32_t i = 0; i < header.parts; ++i) {
    Part part;
    std::memcpy(&part.bytes, first.data<std::byte>() + sizeof(header) + i * sizeof(uint64_t), sizeof(part.bytes));
    if (part.bytes > most - total) return nullptr;
    total += part.bytes;
    if (part.bytes > kInlineSize) {
      if (next == arrival->frames.size() || arrival->frames[next].size() != part.bytes) return nullptr;
      part.data = arrival->frames[next++].data();
    } else {
      if (aligned(part.bytes) > first.size() - offset) return nullptr;
      part.data = first.data<std::byte>() + offset;
      offset += aligned(part.bytes);
    }
    if (i == 0) {
      arrival->payload = {static_cast<const char*>(part.data), part.bytes};
    } else {
      arrival->buffers.push_back({part.data, part.bytes, BP_HOST, 0});
    }
  }
  return next == arrival->frames.size() ? arrival : nullptr;
}

}  // namespace backplane::zmq
