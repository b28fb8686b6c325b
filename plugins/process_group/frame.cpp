// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include <cstring>

#include "backplane/sdk/failure.hpp"

namespace backplane::process_group {
namespace {

constexpr uint64_t kMagic = UINT64_C(0x3130656d61726670);  // "pframe01"
constexpr uint64_t kAlignment = 16;                        // of what stands in a frame

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

struct Head {
  uint64_t magic = kMagic;
  uint64_t number = 0;
  uint64_t parts = 0;
  int64_t timeout_ns = -1;
};
static_assert(sizeof(Head) + kMostParts * sizeof(Part) <= kFrameSize, "the largest table fits into a frame");

}  // namespace

std::string encode(uint64_t number, int64_t timeout_ns, std::string_view payload, const std::vector<bp_buffer>& buffers,
                   std::vector<Part>* parts) {
  const uint64_t count = 1 + buffers.size();
  if (count > kMostParts) {
    throw sdk::Failure(BP_INVALID, "a message has " + std::to_string(count - 1) + " buffers; pack them into fewer");
  }
  parts->resize(count);
  uint64_t end = aligned(sizeof(Head) + count * sizeof(Part));
  for (uint64_t i = 0; i < count; ++i) {
    Part& part = (*parts)[i];
    part.bytes = i == 0 ? payload.size() : buffers[i - 1].count;
    if (part.bytes > kInlineSize || end + part.bytes > kFrameSize) continue;
    part.offset = end;
    end = aligned(end + part.bytes);
  }
  std::string frame(end, '\0');
  const Head head = {kMagic, number, count, timeout_ns};
  std::memcpy(frame.data(), &head, sizeof(head));
  std::memcpy(frame.data() + sizeof(head), parts->data(), count * sizeof(Part));
  for (uint64_t i = 0; i < count; ++i) {
    const Part& part = (*parts)[i];
    if (part.offset == 0 || part.bytes == 0) continue;
    std::memcpy(frame.data() + part.offset, i == 0 ? payload.data() : buffers[i - 1].data, part.bytes);
  }
  return frame;
}

Frame decode(std::string_view bytes, uint64_t most) {
  Head head;
  if (bytes.size() < sizeof(head)) throw sdk::Failure(BP_INVALID, "a frame is too short");
  std::memcpy(&head, bytes.data(), sizeof(head));
  const uint64_t room = (bytes.size() - sizeof(head)) / sizeof(Part);
  if (head.magic != kMagic || head.parts == 0 || head.parts > kMostParts || head.parts > room) {
    throw sdk::Failure(BP_INVALID, "a message on the group is no frame of an RPC agent");
  }
  Frame frame;
  frame.number = head.number;
  frame.timeout_ns = head.timeout_ns;
  frame.parts.resize(head.parts);
  std::memcpy(frame.parts.data(), bytes.data() + sizeof(head), head.parts * sizeof(Part));
  uint64_t total = 0;
  for (const Part& part : frame.parts) {
    const bool outside = part.offset > bytes.size() || part.bytes > bytes.size() - part.offset;
    if (part.bytes > most - total || (part.offset != 0 && outside)) {
      throw sdk::Failure(BP_INVALID, "a frame says that its message is larger than it can be");
    }
    total += part.bytes;
  }
  return frame;
}

}  // namespace backplane::process_group
