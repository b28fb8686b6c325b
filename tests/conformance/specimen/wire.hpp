// SPDX-License-Identifier: Apache-2.0
//
// The specimen's bytes on the wire, little endian. One TCP connection joins each pair of ranks: the higher one dials,
// says Hello, and gets a Welcome. From then on both sides send frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace backplane::specimen {

constexpr uint32_t kMagic = 0x4e435053;  // "SPCN"

using Key = std::array<uint8_t, 16>;  // random, published in the store by the rank that listens

struct Hello {
  uint32_t magic = kMagic;
  int32_t rank = -1;    // who dials
  int32_t target = -1;  // who is meant
  int32_t world_size = 0;
  Key key = {};
};
static_assert(sizeof(Hello) == 32);

struct Welcome {
  uint32_t magic = kMagic;
  uint32_t refusal = 0;  // Refusal
};
static_assert(sizeof(Welcome) == 8);

enum Refusal : uint32_t { kWelcome = 0, kOtherSize = 1, kRankTaken = 2, kLeft = 3 };

enum FrameKind : uint32_t {
  kEager = 1,       // a whole message follows: tag, size
  kRequest = 2,     // a message waits at the sender: tag, size, id of the send
  kReady = 3,       // answer: send it to the receive `other`; id of the send
  kDrop = 4,        // answer: it is too long for its receive; id of the send
  kData = 5,        // its bytes follow; other: the receive, size
  kWithdraw = 6,    // the request of the send `id` is void
  kVoid = 7,        // answer to a kReady that met no send any more; other: the receive
  kCredit = 8,      // size: eager bytes that a receive has taken
  kGoodbye = 9,     // the sender leaves; everything it had sent came before
  kGoodbyeAck = 10  // answer to kGoodbye; the last frame
};

struct Frame {
  uint32_t kind = 0;
  uint32_t channel = 0;  // Channel
  uint64_t tag = 0;
  uint64_t size = 0;
  uint64_t id = 0;
  uint64_t other = 0;
};
static_assert(sizeof(Frame) == 40);

// Messages of users and those of native collectives never meet.
enum Channel : uint32_t { kMessages = 0, kCollectives = 1, kChannelCount = 2 };

}  // namespace backplane::specimen
