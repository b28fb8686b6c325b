// SPDX-License-Identifier: Apache-2.0
//
// Messages that are taken before their buffer is known ("backplane.probe/1").
#include <array>

#include "probe_support.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kInternal = BP_TAG_INTERNAL | 9;

bool any_tag(const Rank& rank) { return rank.has_flag(BP_BACKEND_TAGS) && rank.has_flag(BP_BACKEND_ANY_TAG); }

void none(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  rank.step("probing where no message is");
  const std::string nothing = "before anything was sent";
  prober.expect_none(rank.previous(), 1, nothing);
  if (rank.has_flag(BP_BACKEND_ANY_SOURCE)) prober.expect_none(BP_ANY_SOURCE, 1, nothing);
  if (any_tag(rank)) prober.expect_none(rank.previous(), BP_ANY_TAG, nothing);
  rank.barrier();
  const uint64_t words[2] = {1, 2};
  std::vector<Pending> sends;
  sends.push_back(talk.send(rank.next(), kInternal, &words[0], 8));
  sends.push_back(talk.send(rank.next(), 3, &words[1], 8));
  if (!rank.has_flag(BP_BACKEND_TAGS)) {
    expect_word(rank, talk, prober, prober.take(rank.previous(), kInternal, "the first message"), 1);
    expect_word(rank, talk, prober, prober.take(rank.previous(), 3, "the second message"), 2);
  } else {
    const Taken taken = prober.take(rank.previous(), 3, "the message that was sent last");
    prober.expect_none(rank.previous(), 1, "of an unused tag");
    prober.expect_none(rank.previous(), 3, "while the only message of its tag is taken");
    if (rank.size() > 2) prober.expect_none(rank.next(), kInternal, "of a rank that sent nothing");
    if (any_tag(rank)) prober.expect_none(rank.previous(), BP_ANY_TAG, "of any tag while only one of the core's waits");
    expect_word(rank, talk, prober, prober.take(rank.previous(), kInternal, "the core's message"), 1);
    expect_word(rank, talk, prober, taken, 2);
  }
  talk.finish_all(sends, "send");
  prober.expect_none(rank.previous(), 3, "after all was received");
  rank.barrier();
}

// Two tags by turns. What is taken is kept for a while, and plain recvs get the messages after it.
void oldest(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  const int32_t from = rank.has_flag(BP_BACKEND_ANY_SOURCE) ? BP_ANY_SOURCE : rank.previous();
  for (uint64_t round = 0; round < 10; ++round) {
    rank.step(say("taking the oldest of several messages, round ", round));
    const uint64_t sent[4] = {100 + round, 200 + round, 300 + round, 400 + round};
    const uint64_t tags[4] = {5, 6, 5, 6};
    std::vector<Pending> sends;
    for (size_t i = 0; i < 4; ++i) sends.push_back(talk.send(rank.next(), tags[i], &sent[i], 8));
    const bool tagged = rank.has_flag(BP_BACKEND_TAGS);
    std::array<Taken, 2> taken;
    taken[0] = prober.take(from, any_tag(rank) && round % 2 == 0 ? BP_ANY_TAG : 5, "the first message");
    taken[1] = prober.take(rank.previous(), 6, "the second message");
    uint64_t got[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      const size_t which = tagged ? 1 - i : i;
      Pending recv = talk.recv(rank.previous(), tags[which], &got[which], 8);
      talk.finish(recv, "a recv beside messages that were taken");
    }
    for (size_t i = 2; i-- > 0;) {
      if (tagged) prober.expect_result(taken[i].result, rank.previous(), tags[i], 8, "a probe");
      expect_word(rank, talk, prober, taken[i], sent[i]);
      rank.require(got[i] == sent[2 + i], say("message ", sent[2 + i], " in a recv after one was taken"),
                   say("message ", got[i]));
    }
    talk.finish_all(sends, "send");
    rank.barrier();
  }
}

void posted_first(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  for (uint64_t round = 0; round < 10; ++round) {
    rank.step(say("probing beside posted recvs, round ", round));
    const uint64_t sent[3] = {round * 3, round * 3 + 1, round * 3 + 2};
    uint64_t got[2] = {~uint64_t{0}, ~uint64_t{0}};
    std::vector<Pending> recvs;
    for (uint64_t& each : got) recvs.push_back(talk.recv(rank.previous(), 7, &each, 8));
    rank.barrier();
    std::vector<Pending> sends;
    for (const uint64_t& each : sent) sends.push_back(talk.send(rank.next(), 7, &each, 8));
    const Taken taken = prober.take(rank.previous(), 7, "a message beyond those that recvs wait for");
    expect_word(rank, talk, prober, taken, sent[2]);
    talk.finish_all(recvs, "recv");
    talk.finish_all(sends, "send");
    rank.require(got[0] == sent[0] && got[1] == sent[1], "the first messages in the recvs that were posted before",
                 say("messages ", got[0], " and ", got[1]));
    rank.barrier();
  }
}

void sizes(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  for (const uint64_t size : {UINT64_C(0), UINT64_C(1), UINT64_C(100), UINT64_C(4097), UINT64_C(65'536),
                              UINT64_C(100'003), kMiB + 1, 4 * kMiB}) {
    for (const bool own : {false, true}) {
      const int32_t to = own ? rank.id() : rank.next();
      const int32_t from = own ? rank.id() : rank.previous();
      rank.step(say("taking a message of ", size, " bytes", own ? " from itself" : ""));
      const Guarded output(size);
      fill_pattern(output.data(), size, message_name(rank.id(), to, 2, size));
      Pending send = talk.send(to, 2, output.data(), size);
      const Taken taken = prober.take(from, 2, say("a message of ", size, " bytes"));
      if (rank.has_flag(BP_BACKEND_TAGS)) prober.expect_result(taken.result, from, 2, size, "the probe");
      rank.require(taken.result.bytes == size, say(size, " bytes"), say(taken.result.bytes));
      const Guarded input(taken.result.bytes);
      bp_result result = make_result();
      Pending recv = prober.receive(taken, input.data(), input.size(), &result);
      talk.finish(recv, "a recv into a buffer of the message's size");
      talk.finish(send, "the send");
      talk.expect_report("the recv", result, from, size);
      talk.expect("the message", input.data(), size, message_name(from, rank.id(), 2, size));
      talk.expect_guards("the recv's buffer", input);
    }
  }
}

void too_small(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  for (const uint64_t size : {UINT64_C(100), kRendezvous}) {
    rank.step(say("receiving a message of ", size, " bytes that was taken into less"));
    const Guarded output(size);
    Pending send = talk.send(rank.next(), 3, output.data(), size);
    const Taken taken = prober.take(rank.previous(), 3, "the message");
    const Guarded input(size - 1);
    bp_result result = make_result();
    Pending recv = prober.receive(taken, input.data(), input.size(), &result);
    const Outcome outcome = talk.end(recv, "a recv into too small a buffer");
    rank.require(outcome.status == BP_INVALID, "BP_INVALID", outcome.text());
    talk.expect_report("a recv into too small a buffer", result, rank.previous(), size);
    talk.expect_guards("the recv's buffer", input);
    talk.finish(send, "the send of a message that was too long");
    talk.round(4);
  }
}

void dropped(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  for (const uint64_t size : {UINT64_C(0), UINT64_C(100), kRendezvous}) {
    rank.step(say("dropping a message of ", size, " bytes"));
    const Guarded output(size);
    const uint64_t word = size + 1;
    Pending send = talk.send(rank.next(), 3, output.data(), size);
    Pending after = talk.send(rank.next(), 3, &word, 8);
    prober.drop(prober.take(rank.previous(), 3, "the message to drop"));
    talk.finish(send, "the send of a message that was dropped");
    expect_word(rank, talk, prober, prober.take(rank.previous(), 3, "the message after it"), word);
    talk.finish(after, "the send of the message after it");
  }
}

Case probe_case(const char* name, const char* about, void (*body)(Rank&)) {
  return {.group = "probe", .name = name, .about = about, .body = body};
}

}  // namespace

std::vector<Case> probe_cases() {
  std::vector<Case> cases = {
      probe_case("none", "BP_AGAIN while there is no message of that peer and tag", none),
      probe_case("oldest", "a probe takes the oldest message, which no other recv gets", oldest),
      probe_case("posted-first", "recvs posted before the probe get their messages first", posted_first),
      probe_case("sizes", "messages of all sizes are received into buffers of their size", sizes),
      probe_case("too-small", "a probed message longer than its buffer is BP_INVALID, like any truncation", too_small),
      probe_case("dropped", "dropping a message completes its send", dropped),
  };
  for (Case& one : probe_end_cases()) cases.push_back(one);
  return cases;
}

}  // namespace backplane::conformance
