// SPDX-License-Identifier: Apache-2.0
//
// What stands before the payload of each message between workers: numbers little endian, strings and lists with their
// length. Pure functions; whatever a peer sends is decoded or refused (core::Error, BP_INVALID).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::core::rpc {

// An id that no other worker gives: who made it, and its number there. Of values that are referred to, and of forks
// (the claims on a value, each held by one worker).
struct Id {
  int32_t maker = -1;
  uint64_t number = 0;
  auto operator<=>(const Id&) const = default;
};

// A reference on its way: the receiver holds `fork`, of which the owner knows already.
struct Passed {
  int32_t owner = -1;
  Id value;
  Id fork;
};

enum class Kind : uint8_t {
  kCall = 1,    // function, arguments
  kRemote = 2,  // the same; the callee keeps the result as `value`, on which the caller holds `fork`
  kFetch = 3,   // the value behind `value`, please
  kFork = 4,    // `holder` is being given `fork` of `value`
  kDrop = 5,    // `fork` of `value` is gone
  kReply = 6,   // a result
  kError = 7,   // status, text
  kCancel = 8,  // the sender waits no more for what it asked for with this number, `value` if it was fetched
  kLeave = 9,   // the sender leaves without grace: it answers nothing more, and drops all its references
  kLost = 10,   // the message with these refs was not answered: if it has not come it never counts
  kDoubt = 11   // answers to the receiver's calls up to this number may have been lost with a connection
};

struct Header {
  Kind kind = Kind::kCall;
  uint64_t call = 0;     // the number that the reply repeats
  int32_t status = 0;    // kError
  int32_t holder = -1;   // kFork
  std::string function;  // kCall, kRemote; kError: the text
  Id value = {};
  Id fork = {};
  std::vector<Passed> refs = {};  // kCall, kRemote, kReply, kLost
};

// Does the receiver of such a message hold its refs?
bool brings_refs(Kind kind);

// The header's bytes, with room for `more` behind them.
std::string encode(const Header& header, uint64_t more);
// Takes the header off the front of `bytes`.
Header decode(std::string_view* bytes);

}  // namespace backplane::core::rpc
