// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include <cstring>

#include "backplane/sdk/failure.hpp"

namespace backplane::process_group {
namespace {

constexpr std::string_view kName = "pframe";  // first bytes of each frame, before the two digits of the version
constexpr uint64_t kAlignment = 16;           // of parts in a frame

constexpr int32_t kWithdrawn = 1;  // values of Head::control
constexpr int32_t kReceipt = 2;

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

struct Head {
  char magic[8] = {};  // name and version
  uint64_t number = 0;
  uint64_t parts = 0;
  int64_t timeout_ns = -1;
  uint64_t id = 0;
  int32_t refusal = 0;
  int32_t control = 0;
};
static_assert(sizeof(Head) + kMaxParts * sizeof(Part) <= kFrameSize, "the largest table fits into a frame");

}  // namespace

std::string other_version(std::string_view bytes) {
  if (!bytes.starts_with(kName)) return "";
  const std::string_view version = bytes.substr(kName.size(), kVersion.size());
  const bool is_one = version.find_first_not_of("0123456789") == std::string_view::npos;
  return is_one && version != kVersion ? std::string(version) : "";
}

std::string encode(Frame* frame, std::string_view payload, const std::vector<bp_buffer>& buffers) {
  const uint64_t count = 1 + buffers.size();
  if (count > kMaxParts) {
    throw sdk::Failure(BP_INVALID, "a message has " + std::to_string(count - 1) + " buffers; pack them into fewer");
  }
  std::vector<Part>& parts = frame->parts;
  parts.assign(count, Part());
  uint64_t end = aligned(sizeof(Head) + count * sizeof(Part));
  for (uint64_t i = 0; i < count; ++i) {
    Part& part = parts[i];
    part.bytes = i == 0 ? payload.size() : buffers[i - 1].count;
    if (part.bytes > kInlineSize || end + part.bytes > kFrameSize) continue;
    part.offset = end;
    end = aligned(end + part.bytes);
  }
  std::string bytes(end, '\0');
  const int32_t control = frame->withdrawn ? kWithdrawn : frame->receipt ? kReceipt : 0;
  Head head = {{}, frame->number, count, frame->timeout_ns, frame->id, frame->refusal, control};
  kName.copy(head.magic, kName.size());
  kVersion.copy(head.magic + kName.size(), kVersion.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), parts.data(), count * sizeof(Part));
  for (uint64_t i = 0; i < count; ++i) {
    const Part& part = parts[i];
    if (part.offset == 0 || part.bytes == 0) continue;
    std::memcpy(bytes.data() + part.offset, i == 0 ? payload.data() : buffers[i - 1].data, part.bytes);
  }
  return bytes;
}

void decode(std::string_view bytes, uint64_t max_bytes, Frame* frame) {
  Head head;
  if (bytes.size() < sizeof(head)) throw sdk::Failure(BP_INVALID, "a frame is too short");
  std::memcpy(&head, bytes.data(), sizeof(head));
  const uint64_t room = (bytes.size() - sizeof(head)) / sizeof(Part);
  const bool is_ours = bytes.starts_with(kName) && bytes.substr(kName.size()).starts_with(kVersion);
  if (!is_ours || head.parts == 0 || head.parts > kMaxParts || head.parts > room) {
    throw sdk::Failure(BP_INVALID, "a message on the group is not a frame of this RPC agent");
  }
  frame->number = head.number;
  frame->id = head.id;
  frame->refusal = head.refusal;
  frame->withdrawn = head.control == kWithdrawn;
  frame->receipt = head.control == kReceipt;
  frame->timeout_ns = head.timeout_ns;
  frame->parts.resize(head.parts);
  std::memcpy(frame->parts.data(), bytes.data() + sizeof(head), head.parts * sizeof(Part));
  uint64_t total = 0;
  for (const Part& part : frame->parts) {
    const bool outside = part.offset > bytes.size() || part.bytes > bytes.size() - part.offset;
    if (part.bytes > max_bytes - total || (part.offset != 0 && outside)) {
      throw sdk::Failure(BP_INVALID, "the message is larger than this worker takes (max_message_bytes)");
    }
    total += part.bytes;
  }
}

}  // namespace backplane::process_group
