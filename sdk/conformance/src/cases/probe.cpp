// SPDX-License-Identifier: Apache-2.0
//
// Matched probes ("backplane.probe/1"): messages are taken before a buffer is posted for them.
#include <array>

#include "groups.hpp"
#include "probe_support.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kInternalTag = BP_TAG_INTERNAL | 9;

bool takes_any_tag(const Rank& rank) { return rank.has_flag(BP_BACKEND_TAGS) && rank.has_flag(BP_BACKEND_ANY_TAG); }

void none(Rank& rank) {
  VerifiedAgent verified(rank);
  const Prober prober(rank, verified.agent());
  rank.step("probing where no message is");
  const std::string nothing = "before anything was sent";
  prober.expect_none(rank.previous(), 1, nothing);
  if (rank.has_flag(BP_BACKEND_ANY_SOURCE)) prober.expect_none(BP_ANY_SOURCE, 1, nothing);
  if (takes_any_tag(rank)) prober.expect_none(rank.previous(), BP_ANY_TAG, nothing);
  rank.barrier();
  const uint64_t words[2] = {1, 2};
  std::vector<Pending> sends;
  sends.push_back(verified.send(rank.next(), kInternalTag, &words[0], 8));
  sends.push_back(verified.send(rank.next(), 3, &words[1], 8));
  if (!rank.has_flag(BP_BACKEND_TAGS)) {
    expect_word(rank, verified, prober, prober.take(rank.previous(), kInternalTag, "the first message"), 1);
    expect_word(rank, verified, prober, prober.take(rank.previous(), 3, "the second message"), 2);
  } else {
    const Taken taken = prober.take(rank.previous(), 3, "the message that was sent last");
    prober.expect_none(rank.previous(), 1, "of an unused tag");
    prober.expect_none(rank.previous(), 3, "while the only message of its tag is taken");
    if (rank.size() > 2) prober.expect_none(rank.next(), kInternalTag, "of a rank that sent nothing");
    if (takes_any_tag(rank))
      prober.expect_none(rank.previous(), BP_ANY_TAG, "of any tag while only one of the core's waits");
    expect_word(rank, verified, prober, prober.take(rank.previous(), kInternalTag, "the core's message"), 1);
    expect_word(rank, verified, prober, taken, 2);
  }
  verified.finish_all(sends, "send");
  prober.expect_none(rank.previous(), 3, "after all was received");
  rank.barrier();
}

// Two tags in turn. Probed messages are kept for a while, and plain recvs get the messages after them.
void oldest(Rank& rank) {
  VerifiedAgent verified(rank);
  const Prober prober(rank, verified.agent());
  const int32_t from = rank.has_flag(BP_BACKEND_ANY_SOURCE) ? BP_ANY_SOURCE : rank.previous();
  for (uint64_t round = 0; round < 10; ++round) {
    rank.step(fmt::format("taking the oldest of several messages, round {}", round));
    const uint64_t sent[4] = {100 + round, 200 + round, 300 + round, 400 + round};
    const uint64_t tags[4] = {5, 6, 5, 6};
    std::vector<Pending> sends;
    for (size_t i = 0; i < 4; ++i) sends.push_back(verified.send(rank.next(), tags[i], &sent[i], 8));
    const bool tagged = rank.has_flag(BP_BACKEND_TAGS);
    std::array<Taken, 2> taken;
    taken[0] = prober.take(from, takes_any_tag(rank) && round % 2 == 0 ? BP_ANY_TAG : 5, "the first message");
    taken[1] = prober.take(rank.previous(), 6, "the second message");
    uint64_t got[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      const size_t which = tagged ? 1 - i : i;
      Pending recv = verified.recv(rank.previous(), tags[which], &got[which], 8);
      verified.finish(recv, "a recv beside messages that were taken");
    }
    for (size_t i = 2; i-- > 0;) {
      if (tagged) prober.expect_result(taken[i].result, rank.previous(), tags[i], 8, "a probe");
      expect_word(rank, verified, prober, taken[i], sent[i]);
      rank.require(got[i] == sent[2 + i], fmt::format("message {} in a recv after one was taken", sent[2 + i]),
                   fmt::format("message {}", got[i]));
    }
    verified.finish_all(sends, "send");
    rank.barrier();
  }
}

void posted_first(Rank& rank) {
  VerifiedAgent verified(rank);
  const Prober prober(rank, verified.agent());
  for (uint64_t round = 0; round < 10; ++round) {
    rank.step(fmt::format("probing beside posted recvs, round {}", round));
    const uint64_t sent[3] = {round * 3, round * 3 + 1, round * 3 + 2};
    uint64_t got[2] = {~uint64_t{0}, ~uint64_t{0}};
    std::vector<Pending> recvs;
    for (uint64_t& each : got) recvs.push_back(verified.recv(rank.previous(), 7, &each, 8));
    rank.barrier();
    std::vector<Pending> sends;
    for (const uint64_t& each : sent) sends.push_back(verified.send(rank.next(), 7, &each, 8));
    const Taken taken = prober.take(rank.previous(), 7, "a message beyond those that recvs wait for");
    expect_word(rank, verified, prober, taken, sent[2]);
    verified.finish_all(recvs, "recv");
    verified.finish_all(sends, "send");
    rank.require(got[0] == sent[0] && got[1] == sent[1], "the first messages in the recvs that were posted before",
                 fmt::format("messages {} and {}", got[0], got[1]));
    rank.barrier();
  }
}

void probed_sizes(Rank& rank) {
  VerifiedAgent verified(rank);
  const Prober prober(rank, verified.agent());
  for (const uint64_t size : {UINT64_C(0), UINT64_C(1), UINT64_C(100), UINT64_C(4097), UINT64_C(65'536),
                              UINT64_C(100'003), kMiB + 1, 4 * kMiB}) {
    for (const bool own : {false, true}) {
      const int32_t to = own ? rank.id() : rank.next();
      const int32_t from = own ? rank.id() : rank.previous();
      rank.step(fmt::format("taking a message of {} bytes{}", size, own ? " from itself" : ""));
      const Guarded output(size);
      fill_pattern(output.data(), size, message_name(rank.id(), to, 2, size));
      Pending send = verified.send(to, 2, output.data(), size);
      const Taken taken = prober.take(from, 2, fmt::format("a message of {} bytes", size));
      if (rank.has_flag(BP_BACKEND_TAGS)) prober.expect_result(taken.result, from, 2, size, "the probe");
      rank.require(taken.result.bytes == size, fmt::format("{} bytes", size), std::to_string(taken.result.bytes));
      const Guarded input(taken.result.bytes);
      bp_result result = make_result();
      Pending recv = prober.receive(taken, input.data(), input.size(), &result);
      verified.finish(recv, "a recv into a buffer of the message's size");
      verified.finish(send, "the send");
      verified.expect_report("the recv", result, from, size);
      verified.expect("the message", input.data(), size, message_name(from, rank.id(), 2, size));
      verified.expect_guards("the recv's buffer", input);
    }
  }
}

void too_small(Rank& rank) {
  VerifiedAgent verified(rank);
  const Prober prober(rank, verified.agent());
  for (const uint64_t size : {UINT64_C(100), kRendezvous}) {
    rank.step(fmt::format("receiving a message of {} bytes that was taken into less", size));
    const Guarded output(size);
    Pending send = verified.send(rank.next(), 3, output.data(), size);
    const Taken taken = prober.take(rank.previous(), 3, "the message");
    const Guarded input(size - 1);
    bp_result result = make_result();
    Pending recv = prober.receive(taken, input.data(), input.size(), &result);
    const Outcome outcome = verified.end(recv, "a recv into too small a buffer");
    rank.require(outcome.status == BP_INVALID, "BP_INVALID", outcome.text());
    verified.expect_report("a recv into too small a buffer", result, rank.previous(), size);
    verified.expect_guards("the recv's buffer", input);
    verified.finish(send, "the send of a message that was too long");
    verified.round(4);
  }
}

void dropped(Rank& rank) {
  VerifiedAgent verified(rank);
  const Prober prober(rank, verified.agent());
  for (const uint64_t size : {UINT64_C(0), UINT64_C(100), kRendezvous}) {
    rank.step(fmt::format("dropping a message of {} bytes", size));
    const Guarded output(size);
    const uint64_t word = size + 1;
    Pending send = verified.send(rank.next(), 3, output.data(), size);
    Pending after = verified.send(rank.next(), 3, &word, 8);
    prober.drop(prober.take(rank.previous(), 3, "the message to drop"));
    verified.finish(send, "the send of a message that was dropped");
    expect_word(rank, verified, prober, prober.take(rank.previous(), 3, "the message after it"), word);
    verified.finish(after, "the send of the message after it");
  }
}

}  // namespace

std::vector<Case> probe_cases() {
  return {
      Case("none", "BP_AGAIN while there is no message of that peer and tag", none),
      Case("oldest", "a probe takes the oldest message, which no other recv gets", oldest),
      Case("posted-first", "recvs posted before the probe get their messages first", posted_first),
      Case("sizes", "messages of all sizes are received into buffers of their size", probed_sizes),
      Case("too-small", "a probed message longer than its buffer is BP_INVALID, like any truncation", too_small),
      Case("dropped", "dropping a message completes its send", dropped),
  };
}

}  // namespace backplane::conformance
