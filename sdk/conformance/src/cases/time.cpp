// SPDX-License-Identifier: Apache-2.0
//
// Deadlines: those that the backend keeps itself (BP_OP_SYNC) and those of work_wait. Both may be overshot by 100 ms or
// a tenth, whichever is more. Times are without what threads of this process waited for a CPU, and count as wrong if
// they were wrong three times in a row.
#include <algorithm>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr int kAttempts = 3;   // until a time counts as wrong
constexpr int kMeetings = 10;  // of two ranks, each of which a busy machine can delay

Nanoseconds allowed(const Rank& rank, Nanoseconds timeout) {
  return timeout + rank.scaled(std::max(100 * kMillisecond, timeout / 10));
}

struct Timed {
  Outcome outcome;
  Nanoseconds elapsed = 0;
  Nanoseconds took = 0;
};

// Submits with BP_OP_SYNC. If the backend ignores the flag, waits for the work.
Timed timed_sync(Agent& agent, bp_op op, Nanoseconds timeout) {
  op.flags |= BP_OP_SYNC;
  op.timeout_ns = timeout;
  Timed result;
  const Stopwatch watch;
  Pending pending = agent.submit(op);
  const bool returned_work = pending.in_flight();
  result.outcome = returned_work ? pending.wait(timeout) : pending.submitted();
  const Nanoseconds end = now();
  result.elapsed = watch.elapsed(end);
  result.took = watch.took(end);
  if (returned_work && result.outcome.status == BP_AGAIN) {
    result.outcome.status = BP_TIMEOUT;
    const Outcome ended = pending.finish(0);
    if (ended.ok()) result.outcome = ended;  // it met its message before it was cancelled
  }
  return result;
}

// Runs `attempt` until its duration is within bounds: at least the timeout, at most the allowed overrun.
void in_time(Rank& rank, Nanoseconds timeout, int32_t status, const std::string& what,
             const std::function<Timed()>& attempt) {
  rank.step(fmt::format("{} with a timeout of {} ns", what, timeout));
  Timed last;
  for (int i = 0; i < kAttempts; ++i) {
    last = attempt();
    rank.require(last.outcome.status == status,
                 fmt::format("{} with a timeout of {} ns ends with {}", what, timeout, status_name(status)),
                 last.outcome.text());
    if (last.elapsed >= timeout - kMillisecond && last.took <= allowed(rank, timeout)) return;
  }
  rank.check(
      false,
      fmt::format("{} with a timeout of {} us takes that long, and at most {} us", what, timeout / 1000,
                  allowed(rank, timeout) / 1000),
      fmt::format("it took {} us, {} of them without waiting for a CPU, and about as wrong a time {} times in a row",
                  last.elapsed / 1000, last.took / 1000, kAttempts));
}

void zero_and_tiny(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> memory(100);
  for (const Nanoseconds timeout : {Nanoseconds{0}, Nanoseconds{1}, Nanoseconds{1000}, kMillisecond}) {
    in_time(rank, timeout, BP_TIMEOUT, "a recv with BP_OP_SYNC without a sender",
            [&] { return timed_sync(*agent, unmatched_recv(*agent, memory.data(), memory.size()), timeout); });
  }
  rank.barrier();
  ring(rank, *agent, "after recvs that timed out at once", 1);
}

// A recv with timeout 0 takes a message that has arrived.
void zero_takes_what_is_there(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> got(100);
  const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()), 100);
  Pending send = agent->isend(rank.next(), 1, sent.data(), sent.size());
  rank.step("receiving with a timeout of 0 again and again until the message is there");
  Timed last;
  poll_until(rank.hang_limit(kEndLimit), [&] {
    last = timed_sync(*agent, recv_op(rank.previous(), 1, got.data(), got.size()), 0);
    return last.outcome.status != BP_TIMEOUT;
  });
  rank.require_ok(last.outcome, "a recv with BP_OP_SYNC and a timeout of 0, asked until the message is there,");
  require_bytes(rank, got, static_cast<uint64_t>(rank.previous()), "the message");
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "the send");
}

void per_call(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> memory(100);
  for (const Nanoseconds timeout : {30 * kMillisecond, 150 * kMillisecond, 400 * kMillisecond}) {
    in_time(rank, timeout, BP_TIMEOUT, "a recv with BP_OP_SYNC without a sender",
            [&] { return timed_sync(*agent, unmatched_recv(*agent, memory.data(), memory.size()), timeout); });
    Pending recv = agent->submit(unmatched_recv(*agent, memory.data(), memory.size()));
    in_time(rank, timeout, BP_AGAIN, "work_wait for a recv without a sender", [&] {
      const Stopwatch watch;
      const Outcome outcome = recv.wait(timeout);
      const Nanoseconds end = now();
      return Timed{outcome, watch.elapsed(end), watch.took(end)};
    });
    recv.cancel();
    std::vector<Pending> rest;
    rest.push_back(std::move(recv));
    abandon(rank, *agent, rest);
  }
  rank.barrier();  // ranks that still wait would notice that this one leaves
}

// A wait ends when its operation ends, not at its timeout.
void ends_with_the_message(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> got(100);
  const std::vector<uint8_t> sent(100, 1);
  const Nanoseconds bound = rank.scaled(kSecond / 4);
  for (const bool sync : {false, true}) {
    Nanoseconds best = INT64_MAX;
    for (int i = 0; i < kMeetings; ++i) {
      bp_op op = recv_op(rank.previous(), 1, got.data(), got.size());
      op.timeout_ns = rank.hang_limit(kEndLimit);
      if (sync) op.flags = BP_OP_SYNC;
      Outcome outcome;
      Nanoseconds ended = 0;
      {
        const TestThread receiving([&] {
          outcome = agent->run(op);
          ended = now();
        });
        receiving.await_asleep();
        rank.step("sending to a rank that waits");
        rank.barrier();
        rank.publish(fmt::format("sent at/{}{}/{}", sync, i, rank.id()), std::to_string(now()));
        rank.require_ok(agent->send(rank.next(), 1, sent.data(), sent.size()), "a send to a rank that waits");
      }
      rank.require_ok(outcome, "a recv");
      best = std::min<Nanoseconds>(
          best, ended - std::stoll(rank.await_value(fmt::format("sent at/{}{}/{}", sync, i, rank.previous()))));
      if (!on_any_rank(rank, fmt::format("late/{}/{}", sync, i), best > bound)) break;
    }
    rank.check_time(best, bound, fmt::format("of {} recvs, one ends after its message was sent", kMeetings));
  }
}

// Very long timeouts, which an overflow would make short.
void huge(Rank& rank) {
  const auto agent = rank.open();
  for (const Nanoseconds timeout : {INT64_MAX, INT64_MAX - kSecond, INT64_MAX / 2}) {
    std::vector<uint8_t> got(100);
    const std::vector<uint8_t> sent(100, 1);
    for (const bool sync : {false, true}) {
      bp_op op = recv_op(rank.previous(), 1, got.data(), got.size());
      op.timeout_ns = timeout;
      if (sync) op.flags = BP_OP_SYNC;
      Outcome outcome;
      {
        const TestThread receiving([&] {
          Pending recv = agent->submit(op);
          outcome = recv.wait(timeout);
          if (outcome.status == BP_AGAIN) static_cast<void>(recv.finish(0));
          recv.release();
        });
        receiving.await_asleep();
        rank.require(!receiving.ended(),
                     fmt::format("{} with a timeout of {} ns waits for the message",
                                 sync ? "submit (BP_OP_SYNC)" : "work_wait", timeout),
                     outcome.text());
        rank.step(fmt::format("sending to a rank that waits up to {} ns", timeout));
        rank.barrier();
        rank.require_ok(agent->send(rank.next(), 1, sent.data(), sent.size()), "a send to a rank that waits");
        rank.require(receiving.await(rank.hang_limit(kEndLimit)), "the recv ends", "it does not");
      }
      rank.require_ok(outcome, fmt::format("a recv with a timeout of {} ns", timeout));
      rank.barrier();
    }
  }
}

void infinite_but_abortable(Rank& rank) {
  for (const auto how : {Blocked::How::kInSubmit, Blocked::How::kInWait}) {
    const auto agent = rank.open(in_space(fmt::format("infinite {}", static_cast<int>(how))));
    std::vector<uint8_t> memory(100);
    const Blocked blocked(*agent, unmatched_recv(*agent, memory.data(), memory.size()), how);
    rank.step(fmt::format("waiting without a timeout in {}", name_of(how)));
    rank.require(!blocked.await(300 * kMillisecond),
                 fmt::format("BP_NO_TIMEOUT in {} waits until done or aborted", name_of(how)), "it has returned");
    rank.barrier();  // a rank that ends before would be noticed by others
    const Stopwatch watch;
    agent->abort(BP_CANCELLED, -1, "the case is over");
    rank.require(blocked.await(rank.hang_limit(kEndLimit)),
                 fmt::format("abort ends a wait without a timeout in {}", name_of(how)), "it is still in flight");
    rank.check_time(watch.took(blocked.ended_at()), rank.scaled(kAbortBound), "abort ends a wait without a timeout");
    rank.check(blocked.outcome().status != BP_OK && blocked.outcome().status != BP_AGAIN, "it has failed then",
               blocked.outcome().text());
  }
}

// A send without a recv: done (the message was buffered) or BP_TIMEOUT, in time.
void sends_too(Rank& rank) {
  const auto agent = rank.open();
  const std::vector<uint8_t> large(kLarge, 1);
  rank.barrier();
  rank.step("sending without a recv with a timeout of 200 ms");
  constexpr Nanoseconds kTimeout = 200 * kMillisecond;
  Timed last;
  for (int i = 0; i < kAttempts; ++i) {
    last = timed_sync(*agent, send_op(rank.next(), kSilentTag, large.data(), large.size()), kTimeout);
    rank.require(last.outcome.ok() || last.outcome.status == BP_TIMEOUT, "a send without a recv is done, or BP_TIMEOUT",
                 last.outcome.text());
    if (last.took <= allowed(rank, kTimeout)) break;
  }
  rank.check(last.took <= allowed(rank, kTimeout),
             fmt::format("a send with a timeout of 200 ms takes at most {} ms", allowed(rank, kTimeout) / kMillisecond),
             fmt::format("it took {} ms, and about as long {} times in a row", last.took / kMillisecond, kAttempts));
  rank.barrier();
}

// process_group.h: either the group stays usable and correct, or it reports an error; it never hangs.
void usable_after_timeout(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> memory(1000);
  rank.step("letting a recv time out");
  bp_op op = recv_op(rank.previous(), 1, memory.data(), memory.size());
  const Timed timed = timed_sync(*agent, op, 50 * kMillisecond);
  rank.require(timed.outcome.status == BP_TIMEOUT, "a recv without a sender times out", timed.outcome.text());
  rank.barrier();
  for (uint64_t i = 0; i < 3; ++i) {
    rank.step("receiving after a recv of the same tag timed out");
    const Nanoseconds begin = now();
    const Outcome outcome = try_ring(rank, *agent, 1, i);
    const bool by_itself = now() - begin < rank.hang_limit(kEndLimit);
    rank.require(outcome.ok() || by_itself, "a message after a recv timed out comes, or the recv fails by itself",
                 "it waits: " + outcome.text());
    if (!outcome.ok()) return;
  }
}

// All ranks but rank 0 enter a collective, which cannot end without it.
void collective_in_time(Rank& rank) {
  const auto agent = rank.open();
  int32_t memory = 1;
  bp_op op;
  if (!make_collective(rank, op, &memory)) rank.skip("no native collective for which all ranks have to come");
  rank.barrier();  // the timeout ends the group, also for a rank in init
  constexpr Nanoseconds kTimeout = 300 * kMillisecond;
  rank.step("in a collective for which rank 0 does not come");
  if (rank.id() != 0) {
    op.flags = BP_OP_SYNC;
    op.timeout_ns = kTimeout;
    const Stopwatch watch;
    Pending pending = agent->submit(op);
    const Outcome outcome = pending.wait(kTimeout);
    const Nanoseconds took = watch.took();
    // A rank may first detect that a peer has left.
    rank.check(outcome.status == BP_TIMEOUT || outcome.status == BP_AGAIN || outcome.status == BP_PEER_LOST,
               "a collective without rank 0 times out", outcome.text());
    rank.check_time(took, kTimeout + rank.scaled(kSecond / 2), "a collective with a timeout of 300 ms returns");
    agent->abort(BP_CANCELLED, -1, "the case is over");
    rank.require(pending.wait(rank.hang_limit(kEndLimit)).status != BP_AGAIN, "it ends by abort",
                 "it is still in flight");
    pending.release();
  }
  rank.barrier();
  close_in_time(rank, *agent, "after a collective timed out");
}

}  // namespace

std::vector<Case> time_cases() {
  const Needs tags = {.flags = BP_BACKEND_TAGS};
  return {
      Case("zero-and-tiny", "BP_OP_SYNC with a timeout of 0 or nearly 0 ends at once", zero_and_tiny),
      Case("zero-takes-what-is-there", "BP_OP_SYNC with a timeout of 0 receives what has arrived",
           zero_takes_what_is_there),
      Case("per-call", "each call keeps its own timeout, and overshoots by 100 ms or 10% at most", per_call),
      Case("ends-with-the-message", "a wait is over when its message comes", ends_with_the_message),
      Case("huge", "timeouts up to INT64_MAX wait", huge),
      Case("infinite-but-abortable", "BP_NO_TIMEOUT waits until abort", infinite_but_abortable),
      Case("sends", "a send with BP_OP_SYNC keeps its deadline", sends_too, tags),
      Case("usable-afterwards", "after a recv timed out, messages are correct or fail with an error",
           usable_after_timeout, {}, {.deadline = 40 * kSecond}),
      Case("collective", "a native collective with BP_OP_SYNC keeps its deadline", collective_in_time,
           {.ops = 0, .ranks = 2}),
  };
}

}  // namespace backplane::conformance
