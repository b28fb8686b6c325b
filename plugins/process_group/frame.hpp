// SPDX-License-Identifier: Apache-2.0
//
// What stands in front of each message on the group: how large its payload and buffers are, and the number by which
// those parts are known that follow as messages of their own. Small ones stand in the frame itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backplane/abi/op.h"

namespace backplane::process_group {

inline constexpr uint64_t kFrameSize = 64 << 10;  // the largest frame
inline constexpr uint64_t kInlineSize = 8 << 10;  // a part beyond that travels alone
inline constexpr uint64_t kMostParts = 4000;      // of a message, the payload among them; they fit the frame

// A part of a message: its payload (part 0) or a buffer.
struct Part {
  uint64_t bytes = 0;
  uint64_t offset = 0;  // where it stands in the frame; 0: it travels alone
};

struct Frame {
  uint64_t number = 0;
  uint64_t id = 0;          // the core's, of the message
  int32_t refusal = 0;      // not 0: the status with which the receiver refused that message; the payload says why
  bool withdrawn = false;   // its sender has given it up: what has not come of it will not
  bool receipt = false;     // the receiver of that message, which had id 0, has it, and what was sent before it
  int64_t timeout_ns = -1;  // after which its parts will not come any more; negative: never
  std::vector<Part> parts;
};

// Does any part travel alone?
inline bool goes_in_parts(const Frame& frame) {
  return std::any_of(frame.parts.begin(), frame.parts.end(), [](const Part& part) { return part.offset == 0; });
}

inline constexpr std::string_view kVersion = "04";  // of all that is said here

// The version of a frame that another version of this agent has sent; "" if it is of this one's, or no frame.
std::string other_version(std::string_view bytes);
// The frame's bytes, for a message with this payload and these buffers; fills in `frame->parts`. Throws sdk::Failure if
// there are too many parts.
std::string encode(Frame* frame, std::string_view payload, const std::vector<bp_buffer>& buffers);
// Throws sdk::Failure if these bytes are no frame, or its message is larger than `most` bytes; then the frame says
// which message that was (id 0: unknown).
void decode(std::string_view bytes, uint64_t most, Frame* frame);

}  // namespace backplane::process_group
