// SPDX-License-Identifier: Apache-2.0
//
// The messages between ranks. Each begins with this header (little endian, like all of Backplane).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "backplane/sdk/sdk.hpp"

namespace backplane::zmq {

enum class Kind : uint8_t {
  kHello = 1,      // first on every connection; `value`: the rank that is dialled
  kFrame = 2,      // behind the header, sdk::Messenger's head; its data behind that, or in a second frame of libzmq
  kGoodbye = 3,    // the sender leaves; `value`: the number of its earlier messages; behind the header: why
  kGoodbyeAck = 4  // answer to a goodbye: all messages before it have arrived
};

inline constexpr uint32_t kMagic = 0x325a5042;  // "BPZ2"
inline constexpr uint8_t kVersion = 1;

struct Header {
  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  Kind kind = Kind::kHello;
  uint16_t reserved = 0;
  int32_t source = -1;  // rank of the sender
  uint32_t padding = 0;
  uint64_t token = 0;  // of the session; messages of other sessions are dropped
  uint64_t value = 0;
};
static_assert(sizeof(Header) == 32, "the header is a wire format");

inline constexpr uint64_t kMaxReason = 1024;                                       // bytes of text in a goodbye
inline constexpr uint64_t kHeadSize = sizeof(Header) + sdk::Messenger::kHeadSize;  // bytes before the data

// The header at the front of a frame, if the frame is of this session and from a rank of this group. Its size fits its
// kind.
std::optional<Header> parse(const std::byte* frame, size_t frame_size, uint64_t token, int32_t world_size);

// Why a rank leaves, as text behind a goodbye: "<status> <rank> <text>"; empty for a departure in order.
std::string encode_reason(const sdk::Failure& why);
// The failure of operations that need `rank`.
sdk::Failure decode_reason(const std::string& reason, int32_t rank, int32_t world_size);

}  // namespace backplane::zmq
