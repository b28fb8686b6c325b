// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "groups.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

struct TooLong {
  uint64_t message;
  uint64_t room;
};
constexpr TooLong kTooLong[] = {{2, 1}, {100, 99}, {100, 0}, {70'000, 10}, {300'000, 299'999}, {3'000'000, 4096}};

// Each message that is too long is followed by one that fits. `early`: the recvs are posted before the messages.
void truncation_round(Rank& rank, VerifiedAgent& verified, bool early) {
  uint64_t number = 0;
  for (const TooLong& which : kTooLong) {
    rank.step(fmt::format("sending {} bytes to a recv of {} that was submitted {}", which.message, which.room,
                          early ? "before" : "after"));
    ++number;
    const Guarded output(which.message);
    const Guarded after(50);
    Guarded input(which.room);
    Guarded second(50);
    fill_pattern(output.data(), which.message, message_name(rank.id(), rank.next(), 1, number));
    fill_pattern(after.data(), 50, message_name(rank.id(), rank.next(), 1, number + 1000));
    bp_result result = make_result();
    bp_result second_result = make_result();
    std::vector<Pending> sends;
    const auto send = [&] {
      sends.push_back(verified.send(rank.next(), 1, output.data(), which.message));
      sends.push_back(verified.send(rank.next(), 1, after.data(), 50));
      rank.barrier();
    };
    if (!early) send();
    Pending cut = verified.recv(rank.previous(), 1, which.room == 0 ? nullptr : input.data(), which.room, &result);
    Pending whole = verified.recv(rank.previous(), 1, second.data(), 50, &second_result);
    if (early) rank.barrier();
    if (early) send();
    const Outcome outcome = verified.end(cut, "a recv of a message that is too long");
    rank.require(outcome.status == BP_INVALID,
                 fmt::format("BP_INVALID from a recv of {} bytes for a message of {}", which.room, which.message),
                 outcome.text());
    verified.expect_report("the recv that was too short", result, rank.previous(), which.message);
    verified.expect_guards("the buffer that was too short", input);
    verified.finish(whole, "the recv after it: the message that was too long is consumed, and");
    verified.expect_report("the recv after it", second_result, rank.previous(), 50);
    verified.expect("the message after it", second.data(), 50,
                    message_name(rank.previous(), rank.id(), 1, number + 1000));
    verified.finish_all(sends, "the sender is not concerned: its send");
  }
}

void truncation(Rank& rank) {
  VerifiedAgent verified(rank);
  truncation_round(rank, verified, true);
  truncation_round(rank, verified, false);
}

void truncation_group_usable(Rank& rank) {
  VerifiedAgent verified(rank);
  for (uint64_t number = 0; number < 30; ++number) {
    rank.step(fmt::format("sending a message that is too long and then more, round {}", number));
    const uint64_t size = number % 3 == 0 ? 200'000 : 200;
    const Guarded output(size);
    Guarded small(20);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 2, number));
    Pending cut = verified.recv(rank.previous(), 2, small.data(), 20);
    Pending sending = verified.send(rank.next(), 2, output.data(), size);
    const Outcome outcome = verified.end(cut, "a recv of a message that is too long");
    rank.require(outcome.status == BP_INVALID, "BP_INVALID for a message that is too long", outcome.text());
    verified.finish(sending, "the send of a message that is too long");
    verified.exchange(rank.next(), output, rank.previous(), input, 2);
    verified.expect("a message after one that was too long", input.data(), size,
                    message_name(rank.previous(), rank.id(), 2, number));
    verified.round(3);
  }
}

void shorter_tells_size(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{999}, uint64_t{70'001}, uint64_t{1'000'000}}) {
    rank.step(fmt::format("sending {} bytes to a recv with more room", size));
    const uint64_t room = size * 2 + 100;
    const Guarded output(size);
    Guarded input(room);
    std::fill(input.data(), input.data() + room, std::byte{0x3C});
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 4, size));
    bp_result result = make_result();
    verified.exchange(rank.next(), output, rank.previous(), input, 4, &result);
    verified.expect_report("a recv with more room", result, rank.previous(), size);
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 4, size));
    const std::byte* const rest = input.data() + size;
    const std::byte* const end = input.data() + room;
    const auto* hit = std::find_if(rest, end, [](std::byte byte) { return byte != std::byte{0x3C}; });
    rank.require(hit == end, "the buffer behind a shorter message is left as it was",
                 fmt::format("byte {} has changed, the message has {}", hit - input.data(), size));
    rank.step("the same without a bp_result");
    verified.exchange(rank.next(), output, rank.previous(), input, 4);
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 4, size));
  }
}

}  // namespace

std::vector<Case> p2p_lengths_cases() {
  return {
      Case("truncation",
           "a message longer than its recv is consumed, and the recv ends with BP_INVALID, source and full size",
           truncation),
      Case("truncation-group-usable", "the group stays usable after a truncated message", truncation_group_usable),
      Case("shorter-tells-size", "a recv accepts a shorter message, and bp_result holds its size", shorter_tells_size),
  };
}

}  // namespace backplane::conformance
