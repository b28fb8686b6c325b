// SPDX-License-Identifier: Apache-2.0
//
// The frame of each message on the group. It has the sizes of payload and buffers, the small parts, and the number in
// the tags of the large parts, which are sent as separate messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backplane/abi/op.h"

namespace backplane::process_group {

inline constexpr uint64_t kFrameSize = 64 << 10;  // the largest frame
inline constexpr uint64_t kInlineSize = 8 << 10;  // a larger part is a separate message
inline constexpr uint64_t kMaxParts = 4000;       // of a message, with the payload; their table fits the frame

// A part of a message: its payload (part 0) or a buffer.
struct Part {
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the frame; 0: a separate message
};

struct Frame {
  uint64_t number = 0;
  uint64_t id = 0;          // the core's, of the message
  int32_t refusal = 0;      // not 0: the receiver refuses that message with this status; the payload is the reason
  bool withdrawn = false;   // its sender has abandoned it: no further part follows
  bool receipt = false;     // the receiver has that message (with id 0) and all earlier ones
  int64_t timeout_ns = -1;  // of its parts; negative: none
  std::vector<Part> parts;
};

// Whether any part is a separate message.
inline bool is_multipart(const Frame& frame) {
  return std::any_of(frame.parts.begin(), frame.parts.end(), [](const Part& part) { return part.offset == 0; });
}

inline constexpr std::string_view kVersion = "04";  // of this format

// The version of the frame, if it differs from kVersion. "" if it is equal, or if these bytes are no frame.
std::string other_version(std::string_view bytes);
// Encodes the frame of a message with this payload and these buffers, and fills in `frame->parts`. Throws sdk::Failure
// if there are too many parts.
std::string encode(Frame* frame, std::string_view payload, const std::vector<bp_buffer>& buffers);
// Throws sdk::Failure if these bytes are no frame, or if the message is larger than `max_bytes`. *frame then has its
// number and id (id 0: unknown).
void decode(std::string_view bytes, uint64_t max_bytes, Frame* frame);

}  // namespace backplane::process_group
