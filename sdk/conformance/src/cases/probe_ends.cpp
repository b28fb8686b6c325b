// SPDX-License-Identifier: Apache-2.0
//
// Probes of several threads, and probed messages when a group ends or their sender dies.
#include <signal.h>

#include <algorithm>
#include <array>

#include "death_after.hpp"
#include "endings.hpp"
#include "groups.hpp"
#include "probe_support.hpp"

namespace backplane::conformance {
namespace {

// Threads take messages at the same time.
void taken_once(Rank& rank) {
  constexpr uint64_t kMessages = 120;
  VerifiedAgent verified(rank);
  const Prober prober(rank, verified.agent());
  std::vector<uint64_t> sent(kMessages);
  std::vector<Pending> sends;
  for (uint64_t i = 0; i < kMessages; ++i) {
    sent[i] = i;
    sends.push_back(verified.send(rank.next(), 8, &sent[i], 8));
  }
  struct Log {
    std::vector<uint64_t> got;
    std::string wrong;
  };
  std::array<Log, 3> logs;
  std::atomic<uint64_t> count = 0;
  rank.step("probing from three threads at once");
  const Nanoseconds deadline = now() + rank.hang_limit(kWaitLimit);
  {
    std::vector<std::unique_ptr<TestThread>> threads;
    for (Log& log : logs) {
      threads.push_back(std::make_unique<TestThread>([&rank, &prober, &log, &count, deadline] {
        while (count < kMessages && now() < deadline && log.wrong.empty()) {
          Taken taken;
          const Outcome looked = prober.look(rank.previous(), 8, taken);
          if (looked.status == BP_AGAIN) continue;
          uint64_t word = 0;
          const Outcome got =
              looked.ok() ? prober.receive(taken, &word, 8).finish(rank.hang_limit(kWaitLimit)) : looked;
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
    rank.require(seen[i] == 1, fmt::format("message {} is taken once", i), fmt::format("{} times", seen[i]));
  }
  verified.finish_all(sends, "send");
  rank.barrier();
}

// The abort comes while a thread probes and while messages are taken.
void aborted(Rank& rank) {
  auto agent = rank.open();
  rank.barrier();
  const Prober prober(rank, *agent);
  const std::vector<char> large(kRendezvous);
  std::vector<Pending> sends;
  sends.push_back(agent->isend(rank.next(), 1, large.data(), 100));
  sends.push_back(agent->isend(rank.next(), 2, large.data(), large.size()));
  const Taken small = prober.take(rank.previous(), 1, "a small message");
  const Taken big = prober.take(rank.previous(), 2, "a large message");
  rank.barrier();
  Outcome last;
  Nanoseconds ended = 0;
  {
    const TestThread prying([&] {
      Taken taken;
      poll_until(rank.hang_limit(kEndLimit),
                 [&] { return (last = prober.look(rank.previous(), 3, taken)).status != BP_AGAIN; });
      ended = now();
    });
    rank.step("aborting while a thread probes");
    const Nanoseconds begin = now();
    agent->abort(BP_CANCELLED, -1, "the case wants it");
    rank.require(prying.await(rank.hang_limit(kEndLimit)) && ended - begin < rank.scaled(kAbortBound),
                 "probes fail within half a second of an abort", "some did not");
  }
  rank.require(last.status == BP_CANCELLED || last.status == BP_PEER_LOST,
               "a probe after an abort fails with its status, BP_CANCELLED (or names a rank that was aborted before)",
               last.text());
  rank.step("dropping messages after an abort");
  prober.drop(small);
  prober.drop(big);
  for (Pending& send : sends) {
    rank.require(send.wait(rank.scaled(kAbortBound)).status != BP_AGAIN, "sends end after an abort",
                 "one is still in flight");
    send.release();
  }
  close_in_time(rank, *agent, "after messages that were taken were dropped");
}

// Three small messages have arrived when their sender dies; with tags one of them was not taken.
void after_death(Rank& rank) {
  const int32_t victim = rank.size() - 1;
  Deaths deaths(rank, {victim});
  auto agent = rank.open();
  rank.barrier();
  const Prober prober(rank, *agent);
  constexpr uint64_t kSize = 100;
  if (deaths.doomed()) {
    const std::vector<uint8_t> bytes = bytes_of(1, kSize);
    bool all = true;
    for (const uint64_t tag : {1, 2, 3}) {
      Pending send = agent->isend(0, tag, bytes.data(), kSize);
      all = send.wait(rank.scaled(kSecond / 5)).ok() && all;
    }
    rank.publish("sent", all ? "all" : "not all");
    deaths.await_ready();
    die(rank, SIGKILL);
  }
  if (rank.id() != 0) {
    deaths.ready();
    deaths.await_loss();
    deaths.barrier("over");
    return;
  }
  const Taken first = prober.take(victim, 1, "the first message");
  const bool all = rank.await_value("sent") == "all";
  if (!all) {
    prober.drop(first);
    deaths.ready();
    deaths.await_loss();
    deaths.barrier("over");
    rank.skip("sends to a rank that does not receive are not done, however small");
  }
  const bool tagged = rank.has_flag(BP_BACKEND_TAGS);
  Taken second;
  if (!tagged) second = prober.take(victim, 2, "the second message");
  const Taken third = prober.take(victim, 3, "the last message");
  deaths.ready();
  deaths.await_loss();
  rank.step("probing until the backend has detected the death");
  Taken none;
  Outcome lost;
  poll_until(rank.scaled(kSecond), [&] { return (lost = prober.look(victim, 4, none)).status != BP_AGAIN; });
  rank.require(lost.status == BP_AGAIN || lost.status == BP_PEER_LOST, "BP_PEER_LOST for a message that cannot arrive",
               lost.text());
  rank.step("receiving messages that arrived from a dead rank");
  std::vector<uint8_t> got(kSize);
  rank.require_ok(prober.receive(first, got.data(), kSize).finish(rank.hang_limit(kEndLimit)),
                  "a recv of a taken message");
  require_bytes(rank, got, 1, "a message whose sender died");
  if (tagged) second = prober.take(victim, 2, "a message that had arrived");
  rank.require_ok(prober.receive(second, got.data(), kSize).finish(rank.hang_limit(kEndLimit)), "its recv");
  require_bytes(rank, got, 1, "a message whose sender died");
  prober.drop(third);
  deaths.barrier("over");
}

}  // namespace

std::vector<Case> probe_end_cases() {
  return {
      Case("taken-once", "concurrent probes take each message once", taken_once),
      Case("aborted", "probes fail after an abort, and probed messages can be dropped", aborted, {.ranks = 2}),
      Case("after-death", "a message that has arrived can be received although its sender is dead", after_death,
           {.ranks = 2, .processes = true}),
  };
}

}  // namespace backplane::conformance
