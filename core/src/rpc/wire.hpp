// SPDX-License-Identifier: Apache-2.0
//
// The header of each message between workers: numbers little endian, strings and lists prefixed by their length. Pure
// functions. Malformed bytes are refused (core::Error, BP_INVALID).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::core::rpc {

// Unique among all workers: the rank of the worker that made it, and a number of its own. Identifies values and forks.
struct Id {
  int32_t maker = -1;
  uint64_t number = 0;
  auto operator<=>(const Id&) const = default;
};

// A claim on a value, held by one worker (torch's ForkId). In a message: the receiver becomes its holder, and the owner
// has it registered already.
struct Fork {
  int32_t owner = -1;  // of the value
  Id value;
  Id id;
};

enum class Kind : uint8_t {
  kCall = 1,         // function, arguments
  kRemote = 2,       // the same; the callee keeps the result as `value`, on which the caller holds `fork`
  kFetch = 3,        // asks for the value `value`
  kFork = 4,         // registers `fork` of `value`, which `holder` is about to receive
  kDrop = 5,         // releases `fork` of `value`
  kReply = 6,        // a result
  kError = 7,        // status, text
  kCancel = 8,       // the sender no longer waits for its request of this number; `value` if that was a fetch
  kLeave = 9,        // the sender shuts down without grace: it replies to nothing more and drops all its references
  kAbandon = 10,     // the message with these refs got no reply: the receiver drops those that it does not hold
  kRepliesLost = 11  // replies to the receiver's calls up to this number may have been lost with a connection
};

struct Header {
  Kind kind = Kind::kCall;
  uint64_t call = 0;     // the request's number, which the reply repeats
  int32_t status = 0;    // kError
  int32_t holder = -1;   // kFork
  std::string function;  // kCall, kRemote; kError: the text
  Id value = {};
  Id fork = {};
  std::vector<Fork> refs = {};  // kCall, kRemote, kReply, kAbandon
};

// Whether the receiver of such a message becomes the holder of its refs.
bool carries_refs(Kind kind);

// The header's bytes, with capacity for `payload_bytes` behind them.
std::string encode(const Header& header, uint64_t payload_bytes);
// Removes the header from the front of `bytes`.
Header decode(std::string_view* bytes);

}  // namespace backplane::core::rpc
