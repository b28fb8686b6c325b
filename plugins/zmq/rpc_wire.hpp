// SPDX-License-Identifier: Apache-2.0
//
// The messages between RPC agents. Each begins with a frame of this header (little endian), the sizes of its parts
// (payload and buffers, 8 bytes each), and the small ones among them; each of the others has a frame of its own, which
// is read from the sender's memory and is what the receiver's functions see.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "backplane/sdk/rpc.hpp"

namespace backplane::zmq {

using TimePoint = std::chrono::steady_clock::time_point;

// What proves to a worker that it is meant, and by one of its job: it has put the token into the job's store.
using Token = std::array<char, 16>;

enum class RpcKind : uint8_t {
  kMessage = 1,
  kReceipt = 2,  // nothing but the field `received`
  kQuestion = 3  // a receipt is wanted
};

inline constexpr uint32_t kRpcMagic = 0x31525042;  // "BPR1"
inline constexpr uint64_t kInlineSize = 8 << 10;   // bytes; a larger part has a frame of its own
inline constexpr uint64_t kMostParts = 65536;

struct RpcHeader {
  uint32_t magic = kRpcMagic;
  RpcKind kind = RpcKind::kMessage;
  std::array<uint8_t, 3> reserved = {};
  int32_t from = -1;
  uint32_t parts = 0;
  Token token = {};       // the receiver's
  uint64_t number = 0;    // of a message: the first one between two workers is 1
  uint64_t received = 0;  // the sender has all of the receiver's messages up to this one
};
static_assert(sizeof(RpcHeader) == 48, "the header is a wire format");

// What the first frame of a message that has `bytes` in all can be larger than that.
inline constexpr uint64_t kMostOverhead = sizeof(RpcHeader) + (kMostParts + 1) * (sizeof(uint64_t) + 16);

// A message that was taken over. Kept until the receiver has it and libzmq its buffers no more.
struct Departure {
  Departure(sdk::RpcMessage given, uint64_t its_number, TimePoint its_limit)
      : message(std::move(given)), number(its_number), limit(its_limit) {}
  const sdk::RpcMessage message;
  const uint64_t number;
  const TimePoint limit;  // the sender gives it up then
};

// The frames of a message; of a receipt or a question, without a departure.
std::vector<::zmq::message_t> compose(RpcHeader header, const std::shared_ptr<Departure>& departure);

// The header at the front of a frame, if it is one for the owner of this token, from one of so many workers.
std::optional<RpcHeader> parse_header(const ::zmq::message_t& frame, const Token& own, int32_t world_size);

// A message that came: what it is made of lies in its frames.
struct RpcArrival {
  int32_t from = -1;
  std::vector<::zmq::message_t> frames;
  std::string_view payload;
  std::vector<bp_buffer> buffers;
};

// Takes a message apart; NULL if its frames are not what it says, or it is larger than `most` bytes.
std::shared_ptr<RpcArrival> parse_message(const RpcHeader& header, std::vector<::zmq::message_t> frames, uint64_t most);

}  // namespace backplane::zmq
