// SPDX-License-Identifier: Apache-2.0
//
// The messages between RPC agents. The first frame has this header (little endian), the sizes of the parts (payload and
// buffers, 8 bytes each), and the small parts. Each larger part is a separate frame: libzmq reads it from the
// sender's memory, and the receiver's functions get the received frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "backplane/sdk/rpc.hpp"
#include "options.hpp"

namespace backplane::zmq {

// Drawn by each worker and published in the job's store. Messages to the worker contain it, which proves that their
// sender belongs to the job and means this worker.
using Token = std::array<char, 16>;

enum class RpcKind : uint8_t {
  kMessage = 1,
  kReceipt = 2,        // only the field `received`; each connection begins with one
  kReceiptRequest = 3  // asks for a receipt
};

inline constexpr uint32_t kRpcMagic = 0x31525042;  // "BPR1"
inline constexpr uint64_t kInlineSize = 8 << 10;   // bytes; a larger part is a separate frame
inline constexpr uint64_t kMaxParts = 65536;

struct RpcHeader {
  uint32_t magic = kRpcMagic;
  RpcKind kind = RpcKind::kMessage;
  std::array<uint8_t, 3> reserved = {};
  int32_t from = -1;
  uint32_t parts = 0;
  Token token = {};       // the receiver's
  uint64_t number = 0;    // of a message; 1 is the first between two workers
  uint64_t received = 0;  // the sender has received the receiver's messages up to this one
};
static_assert(sizeof(RpcHeader) == 48, "the header is a wire format");

// Upper bound of the first frame's size beyond the bytes of the message.
inline constexpr uint64_t kMaxOverhead = sizeof(RpcHeader) + (kMaxParts + 1) * (sizeof(uint64_t) + 16);

// A message to send. Kept until the receiver has confirmed it and libzmq has released its buffers.
struct Outgoing {
  Outgoing(sdk::RpcMessage of, uint64_t its_number, TimePoint its_deadline)
      : message(std::move(of)), number(its_number), deadline(its_deadline) {}
  const sdk::RpcMessage message;
  const uint64_t number;
  const TimePoint deadline;
};

// The frames of a message, or of a receipt or request for one (`message` is null).
std::vector<::zmq::message_t> compose(RpcHeader header, const std::shared_ptr<Outgoing>& message);

// The header at the front of a frame. Empty unless it has this worker's token, a valid kind, and a sender of this job.
std::optional<RpcHeader> parse_header(const ::zmq::message_t& frame, const Token& own, int32_t world_size);

// A received message. Payload and buffers refer to its frames.
struct Incoming {
  int32_t from = -1;
  std::vector<::zmq::message_t> frames;
  std::string_view payload;
  std::vector<bp_buffer> buffers;
};

// Null if the frames do not match the header, or the message is larger than `max_bytes`.
std::shared_ptr<Incoming> parse_message(const RpcHeader& header, std::vector<::zmq::message_t> frames,
                                        uint64_t max_bytes);

}  // namespace backplane::zmq
