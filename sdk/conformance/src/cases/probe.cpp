// SPDX-License-Identifier: Apache-2.0
//
// Messages that are taken before their buffer is known ("backplane.probe/1").
#include <signal.h>

#include <array>

#include "async_support.hpp"
#include "death_after.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kInternal = BP_TAG_INTERNAL | 9;
constexpr uint64_t kRendezvous = UINT64_C(2) << 20;  // more than backends send before they are asked to

struct Taken {
  bp_message* message = nullptr;
  bp_result result = make_result();
};

class Prober {
 public:
  Prober(Rank& rank, Agent& agent)
      : rank_(rank),
        agent_(agent),
        api_(static_cast<const bp_probe_api*>(agent.api().extension(agent.self(), BP_EXT_PROBE))) {
    if (api_ == nullptr) rank.skip(say("the backend takes no messages by probe (", BP_EXT_PROBE, ")"));
    rank.require(BP_HAS(api_, drop) && api_->probe != nullptr && api_->drop != nullptr,
                 say("a table of ", BP_EXT_PROBE, " with probe and drop"), "one without");
  }

  // Looks once. Any thread.
  Outcome look(int32_t peer, uint64_t tag, Taken& taken) const {
    Outcome outcome;
    outcome.status =
        api_->probe(api_->ctx, peer, fit_tag(agent_.backend(), tag), &taken.message, &taken.result, &outcome.error);
    return outcome;
  }
  // Looks until a message is there, and leaves the body if none comes.
  Taken take(int32_t peer, uint64_t tag, const std::string& what) const {
    Taken taken;
    Outcome outcome;
    poll_until(rank_.scaled(kPlenty), [&] { return (outcome = look(peer, tag, taken)).status != BP_AGAIN; });
    rank_.require_ok(outcome, "a probe of " + what);
    rank_.require(taken.message != nullptr, "a message where probe says BP_OK", "NULL");
    return taken;
  }
  void expect_none(int32_t peer, uint64_t tag, const std::string& when) const {
    Taken taken;
    const Outcome outcome = look(peer, tag, taken);
    rank_.require(outcome.status == BP_AGAIN, "BP_AGAIN of a probe " + when, outcome.text());
  }
  void expect_result(const bp_result& result, int32_t source, uint64_t tag, uint64_t bytes,
                     const std::string& what) const {
    const uint64_t fitted = fit_tag(agent_.backend(), tag);
    rank_.require(result.source == source && result.bytes == bytes && result.tag == fitted,
                  say(what, " reports source ", source, ", tag ", fitted, ", ", bytes, " bytes"),
                  say("source ", result.source, ", tag ", result.tag, ", ", result.bytes, " bytes"));
  }
  Pending receive(const Taken& taken, void* data, uint64_t bytes, bp_result* result = nullptr) const {
    bp_op op = recv_op(0, 0, data, bytes, result);
    op.message = taken.message;
    op.timeout_ns = rank_.scaled(kEnough);
    return agent_.submit(op);
  }
  void drop(const Taken& taken) const { api_->drop(api_->ctx, taken.message); }

 private:
  Rank& rank_;
  Agent& agent_;
  const bp_probe_api* const api_;
};

bool any_tag(const Rank& rank) { return rank.has_flag(BP_BACKEND_TAGS) && rank.has_flag(BP_BACKEND_ANY_TAG); }

// A word from the rank before, received by a taken message.
void expect_word(Rank& rank, Talk& talk, const Prober& prober, const Taken& taken, uint64_t word) {
  uint64_t got = 0;
  Pending recv = prober.receive(taken, &got, sizeof got);
  talk.finish(recv, "a recv of a message that was taken");
  rank.require(got == word, say("message ", word), say("message ", got));
}

void none(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  rank.doing("probing where no message is");
  const std::string nothing = "before anything was sent";
  prober.expect_none(rank.previous(), 1, nothing);
  if (rank.has_flag(BP_BACKEND_ANY_SOURCE)) prober.expect_none(BP_ANY_SOURCE, 1, nothing);
  if (any_tag(rank)) prober.expect_none(rank.previous(), BP_ANY_TAG, nothing);
  rank.meet();
  const uint64_t words[2] = {1, 2};
  std::vector<Pending> sends;
  sends.push_back(talk.send(rank.next(), kInternal, &words[0], 8));
  sends.push_back(talk.send(rank.next(), 3, &words[1], 8));
  if (!rank.has_flag(BP_BACKEND_TAGS)) {
    expect_word(rank, talk, prober, prober.take(rank.previous(), kInternal, "the first message"), 1);
    expect_word(rank, talk, prober, prober.take(rank.previous(), 3, "the second message"), 2);
  } else {
    const Taken taken = prober.take(rank.previous(), 3, "the message that was sent last");
    prober.expect_none(rank.previous(), 1, "of a tag that nobody sent with");
    prober.expect_none(rank.previous(), 3, "while the only message of its tag is taken");
    if (rank.size() > 2) prober.expect_none(rank.next(), kInternal, "of a rank that sent nothing");
    if (any_tag(rank)) prober.expect_none(rank.previous(), BP_ANY_TAG, "of any tag while only one of the core's waits");
    expect_word(rank, talk, prober, prober.take(rank.previous(), kInternal, "the core's message"), 1);
    expect_word(rank, talk, prober, taken, 2);
  }
  talk.finish_all(sends, "send");
  prober.expect_none(rank.previous(), 3, "after all was received");
  rank.meet();
}

// Two tags by turns. What is taken is kept for a while, and plain recvs get the messages after it.
void oldest(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  const int32_t from = rank.has_flag(BP_BACKEND_ANY_SOURCE) ? BP_ANY_SOURCE : rank.previous();
  for (uint64_t round = 0; round < 10; ++round) {
    rank.doing(say("taking the oldest of several messages, round ", round));
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
    rank.meet();
  }
}

void posted_first(Rank& rank) {
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  for (uint64_t round = 0; round < 10; ++round) {
    rank.doing(say("probing beside posted recvs, round ", round));
    const uint64_t sent[3] = {round * 3, round * 3 + 1, round * 3 + 2};
    uint64_t got[2] = {~uint64_t{0}, ~uint64_t{0}};
    std::vector<Pending> recvs;
    for (uint64_t& each : got) recvs.push_back(talk.recv(rank.previous(), 7, &each, 8));
    rank.meet();
    std::vector<Pending> sends;
    for (const uint64_t& each : sent) sends.push_back(talk.send(rank.next(), 7, &each, 8));
    const Taken taken = prober.take(rank.previous(), 7, "a message beyond those that recvs wait for");
    expect_word(rank, talk, prober, taken, sent[2]);
    talk.finish_all(recvs, "recv");
    talk.finish_all(sends, "send");
    rank.require(got[0] == sent[0] && got[1] == sent[1], "the first messages in the recvs that were posted before",
                 say("messages ", got[0], " and ", got[1]));
    rank.meet();
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
      rank.doing(say("taking a message of ", size, " bytes", own ? " from itself" : ""));
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
    rank.doing(say("receiving a message of ", size, " bytes that was taken into less"));
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
    rank.doing(say("dropping a message of ", size, " bytes"));
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

// Threads take messages at the same time.
void taken_once(Rank& rank) {
  constexpr uint64_t kMessages = 120;
  Talk talk(rank);
  const Prober prober(rank, talk.agent());
  std::vector<uint64_t> sent(kMessages);
  std::vector<Pending> sends;
  for (uint64_t i = 0; i < kMessages; ++i) {
    sent[i] = i;
    sends.push_back(talk.send(rank.next(), 8, &sent[i], 8));
  }
  struct Log {
    std::vector<uint64_t> got;
    std::string wrong;
  };
  std::array<Log, 3> logs;
  std::atomic<uint64_t> count = 0;
  rank.doing("probing from three threads at once");
  const Nanoseconds deadline = now() + rank.scaled(kEnough);
  {
    std::vector<std::unique_ptr<Aside>> threads;
    for (Log& log : logs) {
      threads.push_back(std::make_unique<Aside>([&rank, &prober, &log, &count, deadline] {
        while (count < kMessages && now() < deadline && log.wrong.empty()) {
          Taken taken;
          const Outcome looked = prober.look(rank.previous(), 8, taken);
          if (looked.status == BP_AGAIN) continue;
          uint64_t word = 0;
          const Outcome got = looked.ok() ? prober.receive(taken, &word, 8).finish(rank.scaled(kEnough)) : looked;
          if (!got.ok()) log.wrong = got.text();
          log.got.push_back(word);
          ++count;
        }
      }));
    }
  }
  std::vector<int> seen(kMessages);
  for (const Log& log : logs) {
    rank.require(log.wrong.empty(), "probes and recvs of several threads succeed", log.wrong);
    for (const uint64_t word : log.got) seen[std::min(word, kMessages - 1)] += 1;
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    rank.require(seen[i] == 1, say("message ", i, " is taken once"), say(seen[i], " times"));
  }
  talk.finish_all(sends, "send");
  rank.meet();
}

// The abort comes while a thread probes and while messages are taken.
void aborted(Rank& rank) {
  auto agent = rank.open();
  rank.meet();
  const Prober prober(rank, *agent);
  const std::vector<char> large(kRendezvous);
  std::vector<Pending> sends;
  sends.push_back(agent->isend(rank.next(), 1, large.data(), 100));
  sends.push_back(agent->isend(rank.next(), 2, large.data(), large.size()));
  const Taken small = prober.take(rank.previous(), 1, "a small message");
  const Taken big = prober.take(rank.previous(), 2, "a large message");
  rank.meet();
  Outcome last;
  Nanoseconds ended = 0;
  {
    const Aside prying([&] {
      Taken taken;
      poll_until(rank.scaled(kPlenty),
                 [&] { return (last = prober.look(rank.previous(), 3, taken)).status != BP_AGAIN; });
      ended = now();
    });
    rank.doing("aborting while a thread probes");
    const Nanoseconds begin = now();
    agent->abort(BP_CANCELLED, -1, "the case wants it");
    rank.require(prying.await(rank.scaled(kPlenty)) && ended - begin < rank.scaled(kAbortBound),
                 "probes fail within half a second of an abort", "they went on");
  }
  rank.require(last.status == BP_CANCELLED || last.status == BP_PEER_LOST,
               "a probe after an abort fails with its status, BP_CANCELLED (or names a rank that was aborted before)",
               last.text());
  rank.doing("dropping messages after an abort");
  prober.drop(small);
  prober.drop(big);
  for (Pending& send : sends) {
    rank.require(send.wait(rank.scaled(kAbortBound)).status != BP_AGAIN, "sends end after an abort", "one goes on");
    send.release();
  }
  close_in_time(rank, *agent, "after messages that were taken were dropped");
}

// Three small messages have arrived when their sender dies: two of them were taken.
void after_death(Rank& rank) {
  const int32_t victim = rank.size() - 1;
  Deaths deaths(rank, {victim});
  auto agent = rank.open();
  rank.meet();
  const Prober prober(rank, *agent);
  constexpr uint64_t kSize = 100;
  if (deaths.doomed()) {
    const std::vector<uint8_t> bytes = bytes_of(1, kSize);
    bool all = true;
    for (const uint64_t tag : {1, 2, 3}) {
      Pending send = agent->isend(0, tag, bytes.data(), kSize);
      all = send.wait(rank.scaled(kSecond / 5)).ok() && all;
    }
    rank.tell("sent", all ? "all" : "not all");
    deaths.await_ready();
    deaths.tell_time();
    rank.die(SIGKILL);
  }
  if (rank.id() != 0) {
    deaths.ready();
    deaths.await_loss();
    deaths.meet("over");
    return;
  }
  const Taken first = prober.take(victim, 1, "the first message");
  const bool all = rank.ask("sent") == "all";
  if (!all) {
    prober.drop(first);
    deaths.ready();
    deaths.await_loss();
    deaths.meet("over");
    rank.skip("sends to a rank that does not receive are not done, however small");
  }
  const Taken third = prober.take(victim, rank.has_flag(BP_BACKEND_TAGS) ? 3 : 2, "the last message");
  deaths.ready();
  deaths.await_loss();
  rank.doing("receiving what had arrived from a rank that is dead");
  std::vector<uint8_t> got(kSize);
  rank.require_ok(prober.receive(first, got.data(), kSize).finish(rank.scaled(kPlenty)), "a recv of a taken message");
  require_bytes(rank, got, 1, "a message whose sender died");
  if (rank.has_flag(BP_BACKEND_TAGS)) {
    const Taken second = prober.take(victim, 2, "a message that had arrived");
    rank.require_ok(prober.receive(second, got.data(), kSize).finish(rank.scaled(kPlenty)), "its recv");
    require_bytes(rank, got, 1, "a message whose sender died");
  }
  prober.drop(third);
  Taken taken;
  Outcome outcome;
  poll_until(rank.scaled(kSecond), [&] { return (outcome = prober.look(victim, 4, taken)).status != BP_AGAIN; });
  rank.require(outcome.status == BP_AGAIN || outcome.status == BP_PEER_LOST, "BP_PEER_LOST for what cannot come",
               outcome.text());
  deaths.meet("over");
}

Case probe_case(const char* name, const char* about, void (*body)(Rank&), int32_t ranks = 1) {
  return {.group = "probe", .name = name, .about = about, .needs = {.ranks = ranks}, .body = body};
}

}  // namespace

std::vector<Case> probe_cases() {
  Case death =
      probe_case("after-death", "a message that has arrived is received although its sender is dead", after_death, 2);
  death.needs.processes = true;
  return {
      probe_case("none", "BP_AGAIN while there is no message of that peer and tag", none),
      probe_case("oldest", "a probe takes the oldest message, which no recv gets any more", oldest),
      probe_case("posted-first", "recvs that were posted before get their messages first", posted_first),
      probe_case("sizes", "messages of all sizes are received into buffers of their size", sizes),
      probe_case("too-small", "a message that was taken and is too long is BP_INVALID, as of any recv", too_small),
      probe_case("dropped", "the sender of a message that is dropped is done", dropped),
      probe_case("taken-once", "threads that probe at the same time take each message once", taken_once),
      probe_case("aborted", "probes fail after an abort, and what they took can be dropped", aborted, 2),
      death,
  };
}

}  // namespace backplane::conformance
