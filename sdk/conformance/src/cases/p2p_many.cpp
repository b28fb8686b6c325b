// SPDX-License-Identifier: Apache-2.0
//
// Many messages and many ranks.
#include <vector>

#include "bounded_memory.hpp"
#include "groups.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kMessagesAtOnce = 50;  // messages in flight
constexpr uint64_t kMessageBytes = 48;    // bytes of a message

// Sends `count` messages to the next rank and receives as many from the previous one; `first` is the number of the
// first.
void pass_messages(VerifiedAgent& verified, uint64_t first, uint64_t count) {
  Rank& rank = verified.rank();
  std::vector<std::byte> outputs(kMessagesAtOnce * kMessageBytes);
  std::vector<std::byte> inputs(kMessagesAtOnce * kMessageBytes);
  std::vector<Pending> pending;
  for (uint64_t number = first; number < first + count; number += kMessagesAtOnce) {
    for (uint64_t i = 0; i < kMessagesAtOnce; ++i) {
      fill_pattern(&outputs[i * kMessageBytes], kMessageBytes, message_name(rank.id(), rank.next(), 1, number + i));
      pending.push_back(verified.recv(rank.previous(), 1, &inputs[i * kMessageBytes], kMessageBytes));
    }
    for (uint64_t i = 0; i < kMessagesAtOnce; ++i) {
      pending.push_back(verified.send(rank.next(), 1, &outputs[i * kMessageBytes], kMessageBytes));
    }
    for (uint64_t i = 0; i < kMessagesAtOnce; ++i) {
      verified.finish(pending[i], fmt::format("the recv of message {}", number + i));
      verified.expect(fmt::format("message {}", number + i), &inputs[i * kMessageBytes], kMessageBytes,
                      message_name(rank.previous(), rank.id(), 1, number + i));
    }
    for (uint64_t i = kMessagesAtOnce; i < 2 * kMessagesAtOnce; ++i) verified.finish(pending[i], "a send");
    pending.clear();
  }
}

// After `warm_up` messages, `count` more may cost no more than `most` bytes of resident memory for each rank.
void pass_in_bounded_memory(Rank& rank, uint64_t warm_up, uint64_t count, uint64_t most) {
  VerifiedAgent verified(rank);
  rank.step(fmt::format("exchanging {} messages", warm_up + count));
  pass_messages(verified, 0, warm_up);
  rank.barrier();
  const uint64_t before = resident_bytes();
  pass_messages(verified, warm_up, count);
  check_growth(rank, before, most, fmt::format("{} messages", count));
}

void memory_of_messages(Rank& rank) { pass_in_bounded_memory(rank, 4'000, 16'000, 2 * kMiB); }
void many_messages(Rank& rank) { pass_in_bounded_memory(rank, 20'000, 100'000, 4 * kMiB); }

// Each rank sends to each rank, itself included, under tags and in sizes as the seed has them.
void across_larger_worlds(Rank& rank) {
  VerifiedAgent verified(rank);
  for (uint64_t turn = 0; turn < 4; ++turn) {
    const uint64_t size = rank.shared_random()() % (turn == 3 ? 100'000 : 3'000);
    const uint64_t tag = rank.has_flag(BP_BACKEND_TAGS) ? rank.shared_random()() % 1000 : 1;
    rank.step(fmt::format("sending {} bytes to every rank, turn {}", size, turn));
    std::vector<Guarded> buffers;
    std::vector<Pending> pending;
    for (int32_t peer = 0; peer < rank.size(); ++peer) {
      buffers.emplace_back(size);
      fill_pattern(buffers.back().data(), size, message_name(rank.id(), peer, tag, turn));
      pending.push_back(verified.send(peer, tag, buffers.back().data(), size));
    }
    for (int32_t peer = 0; peer < rank.size(); ++peer) {
      Guarded input(size);
      Pending receiving = verified.recv(peer, tag, input.data(), size);
      verified.finish(receiving, fmt::format("a recv from rank {}", peer));
      verified.expect(fmt::format("the message of rank {}", peer), input.data(), size,
                      message_name(peer, rank.id(), tag, turn));
    }
    verified.finish_all(pending, "send");
  }
}

}  // namespace

std::vector<Case> p2p_many_cases() {
  return {
      Case("memory-per-message", "memory does not grow with the number of messages: 16,000", memory_of_messages, {},
           {.deadline = 60 * kSecond}),
      Case("hundred-thousand", "100,000 messages arrive in order, and memory does not grow", many_messages, {},
           {.level = Level::kThorough, .deadline = 240 * kSecond}),
      Case("larger-worlds", "every rank reaches every rank in worlds of 5 and 8", across_larger_worlds, {},
           {.worlds = {5, 8}}),
  };
}

}  // namespace backplane::conformance
