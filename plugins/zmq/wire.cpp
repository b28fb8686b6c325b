// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include <cstring>
#include <sstream>

namespace backplane::zmq {
namespace {

bool fits(Kind kind, size_t behind) {
  switch (kind) {
    case Kind::kFrame:
      return behind >= sdk::Messenger::kHeadSize;
    case Kind::kGoodbye:
      return behind <= kMaxReason;
    case Kind::kHello:
    case Kind::kGoodbyeAck:
      return behind == 0;
  }
  return false;
}

}  // namespace

std::optional<Header> parse(const std::byte* frame, size_t frame_size, uint64_t token, int32_t world_size) {
  Header header;
  if (frame_size < sizeof(Header)) return std::nullopt;
  std::memcpy(static_cast<void*>(&header), frame, sizeof(Header));
  if (header.magic != kMagic || header.version != kVersion || header.token != token) return std::nullopt;
  if (header.source < 0 || header.source >= world_size) return std::nullopt;
  if (!fits(header.kind, frame_size - sizeof(Header))) return std::nullopt;
  return header;
}

std::string encode_reason(const sdk::Failure& why) {
  const std::string text = std::to_string(why.status()) + " " + std::to_string(why.peer_rank()) + " " + why.what();
  return text.substr(0, kMaxReason);
}

sdk::Failure decode_reason(const std::string& reason, int32_t rank, int32_t world_size) {
  const std::string left = "rank " + std::to_string(rank) + " has left the group";
  std::istringstream stream(reason);
  int32_t status = BP_OK;
  int32_t peer_rank = -1;
  if (!(stream >> status >> peer_rank)) return {BP_PEER_LOST, left, rank};
  std::string text;
  std::getline(stream >> std::ws, text);
  // A cancellation there is a loss here. Any other cause is the same for all ranks.
  const bool shared = status > BP_OK && status <= BP_INTERNAL && status != BP_CANCELLED && status != BP_AGAIN;
  if (!shared || peer_rank < -1 || peer_rank >= world_size) return {BP_PEER_LOST, left + ": " + text, rank};
  if (peer_rank < 0) return {status, left + ": " + text, rank};
  return {status, text, peer_rank};
}

}  // namespace backplane::zmq
