// SPDX-License-Identifier: Apache-2.0
//
// The messages between ranks. Each begins with this header (little endian, as all of Backplane); the table of kinds
// is in the design document (share/doc/design.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "backplane/sdk/sdk.hpp"

namespace backplane::zmq_plugin {

enum class Kind : uint8_t {
  kHello = 1,     // first on every connection: who dialled, and rank `target` is meant
  kEager = 2,     // a whole message of `size` bytes behind the header
  kRequest = 3,   // a message of `size` bytes waits at the sender under `id`
  kReady = 4,     // answer to request `id`: send it to `target`; with size 0, drop it
  kData = 5,      // part of the message for `target`, from byte `offset`; a second frame of `size` bytes
  kWithdraw = 6,  // request `id` is void
  kCredit = 7,    // nothing but the field `credit`
  kBye = 8,       // the sender leaves, having sent `size` messages before this one. Behind the header: why
  kFarewell = 9,  // answer to a bye: all that came before it has arrived
  kWhole = 10     // as kEager, but its bytes in a second frame
};

inline constexpr uint32_t kMagic = 0x315a5042;  // "BPZ1"
inline constexpr uint8_t kVersion = 1;

struct Header {
  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  Kind kind = Kind::kHello;
  uint16_t reserved = 0;
  int32_t source = -1;  // rank of the sender
  uint32_t credit = 0;  // eager bytes that the receiver of this message may send beyond what it could
  uint64_t token = 0;   // of the session; messages of another one are dropped
  uint64_t tag = 0;
  uint64_t size = 0;
  uint64_t id = 0;
  uint64_t target = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(Header) == 64, "the header is a wire format");

inline constexpr uint64_t kMaxReason = 1024;  // bytes of text in a bye

// The header at the front of a frame, if it is one of this session and from a rank of this group. Kinds and sizes are
// consistent with the frame; ids, offsets and the right to send this kind are for the caller to check.
std::optional<Header> parse(const std::byte* frame, size_t frame_size, uint64_t token, int32_t world_size);

// Why a rank leaves, as text behind a bye: "<status> <rank> <text>"; empty for a departure in order.
std::string encode_reason(const sdk::Failure& why);
// Makes of it the failure of operations that need `rank`.
sdk::Failure decode_reason(const std::string& reason, int32_t rank, int32_t world_size);

}  // namespace backplane::zmq_plugin
