// SPDX-License-Identifier: Apache-2.0
//
// How messages travel, so that every receive can be given to MPI at once although MPI does not tell the size of a
// message that is too long. Messages of at most kShort bytes are sent as they are. Of a longer one an announcement is
// sent in its place, and the payload beside it, over a communicator of the plugin, with a tag of its own. Receives have
// memory for kShort bytes, and then for the payload.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace backplane::mpi {

constexpr uint64_t kShort = 1024;  // bytes; beyond it, an announcement costs less than a copy on each side

// Numbers are in the order of the machine: the processes of a world have one.
struct Announcement {
  // By this size a receiver knows it. Messages of the program have others, or are announced.
  static constexpr size_t kSize = 13;
  using Bytes = std::array<std::byte, kSize>;

  uint64_t bytes = 0;  // of the payload
  uint32_t tag = 0;    // of the payload

  void write(std::byte* to) const {
    std::memcpy(to, &bytes, sizeof bytes);
    std::memcpy(to + sizeof bytes, &tag, sizeof tag);
    to[kSize - 1] = std::byte{0};
  }
  static Announcement read(const std::byte* from) {
    Announcement announcement;
    std::memcpy(&announcement.bytes, from, sizeof bytes);
    std::memcpy(&announcement.tag, from + sizeof bytes, sizeof tag);
    return announcement;
  }
};

constexpr bool is_announced(uint64_t bytes) { return bytes > kShort || bytes == Announcement::kSize; }

// Tags of the plugin's communicator. Payloads have the lower half, in turn; exchanges (exchange.hpp) the other.
constexpr uint32_t kOwnTagBits = 18;
constexpr uint32_t kPayloadTags = 1U << kOwnTagBits;
constexpr uint32_t kStepBits = 6;  // of an exchange
constexpr int exchange_tag(uint64_t seq, uint32_t step) {
  constexpr uint64_t kCalls = 1U << (kOwnTagBits - kStepBits);
  return static_cast<int>(kPayloadTags + (seq % kCalls << kStepBits) + step);
}

}  // namespace backplane::mpi
