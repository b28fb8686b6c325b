// SPDX-License-Identifier: Apache-2.0
//
// Abort ends all operations of a rank. Peers may notice, so in most cases one rank aborts while the others have nothing
// in flight.
#include <algorithm>

#include "../names.hpp"
#include "async_support.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"
#include "init_raw.hpp"

namespace backplane::conformance {
namespace {

constexpr const char* kCause = "rank 77 of the cause was lost";

// The rank that aborts in this run; the same on all ranks.
bool aborts(Rank& rank) {
  return static_cast<int32_t>(rank.shared_random()() % static_cast<uint64_t>(rank.size())) == rank.id();
}

// The operation ended with the cause's status and text.
void expect_cause(Rank& rank, const Outcome& outcome, int32_t status, const std::string& what) {
  rank.check(outcome.status == status,
             fmt::format("{} ends with {}, the status of the cause", what, status_name(status)), outcome.text());
  rank.check(outcome.text().find(kCause) != std::string::npos, fmt::format("{} says why: \"{}{}", what, kCause, '"'),
             outcome.text());
}

// A thread blocks in `op`; abort comes from this one.
void abort_blocked(Rank& rank, Agent& agent, const bp_op& op, const std::string& what, Blocked::How how) {
  rank.step(fmt::format("{} blocks in {}", what, name_of(how)));
  const Blocked blocked(agent, op, how);
  if (op.kind == BP_SEND && blocked.ended()) return;  // buffered
  rank.require(!blocked.ended(), what + " waits", blocked.outcome().text());
  rank.step(fmt::format("aborting while {} blocks in {}", what, name_of(how)));
  const Stopwatch watch;
  agent.abort(BP_PEER_LOST, 0, kCause);
  rank.check_time(watch.took(), rank.scaled(kAbortBound), "abort returns");
  rank.require(blocked.await(rank.hang_limit(kEndLimit)), fmt::format("abort ends {} in {}", what, name_of(how)),
               "it has not returned");
  rank.check_time(watch.took(blocked.ended_at()), rank.scaled(kAbortBound),
                  fmt::format("abort ends {} in {}", what, name_of(how)));
  if (op.kind != BP_SEND || !blocked.outcome().ok()) {
    expect_cause(rank, blocked.outcome(), BP_PEER_LOST, fmt::format("{} in {}", what, name_of(how)));
  }
}

// One rank blocks in the operation, inside submit and then inside work_wait, and aborts.
template <typename MakeOp>
void block_each_way(Rank& rank, const char* what, const MakeOp& make_op) {
  std::vector<uint8_t> memory(kLarge, 1);
  for (const auto how : {Blocked::How::kInSubmit, Blocked::How::kInWait}) {
    const auto agent = rank.open(in_space(fmt::format("{} {}", what, static_cast<int>(how))));
    rank.barrier();
    if (aborts(rank)) abort_blocked(rank, *agent, make_op(*agent, memory.data()), what, how);
    rank.barrier();
  }
}

void blocked_recv(Rank& rank) {
  block_each_way(rank, "a recv", [](Agent& agent, void* memory) { return unmatched_recv(agent, memory, 100); });
}

void blocked_any_source(Rank& rank) {
  block_each_way(rank, "a recv from BP_ANY_SOURCE",
                 [](Agent&, void* memory) { return recv_op(BP_ANY_SOURCE, kSilentTag, memory, 100); });
}

void blocked_send(Rank& rank) {
  block_each_way(rank, "a send",
                 [&rank](Agent&, void* memory) { return send_op(rank.next(), kSilentTag, memory, kLarge); });
}

// All ranks but rank 0 enter a collective that the last rank cannot end without it. The last rank aborts first, then
// the others, some of which may have ended.
void abort_collective(Rank& rank, uint32_t which, Blocked::How how) {
  const std::string name = op_name(which);
  Collectives group(rank, in_space(fmt::format("{} {}", name, static_cast<int>(how))));
  Shape shape = usual_shape(*group.native(which), 200);
  const bool to_root = shape.op == BP_REDUCE || shape.op == BP_GATHER || shape.op == BP_GATHERV;
  if (to_root) shape.root = rank.size() - 1;
  const Call call(shape, rank.id(), rank.size());
  bp_op op = call.op();
  op.seq = group.next_seq();
  const std::string word = fmt::format("first/{}/{}", name, static_cast<int>(how));
  if (rank.id() == rank.size() - 1) {
    rank.barrier();
    abort_blocked(rank, group.agent(), op, name, how);
    rank.publish(word, "aborted");
  } else if (rank.id() != 0) {
    rank.step(fmt::format("blocking in {} in {}", name, name_of(how)));
    const Blocked blocked(group.agent(), op, how);
    rank.barrier();
    rank.await_value(word);
    rank.step("aborting after another rank has");
    const Stopwatch watch;
    group.agent().abort(BP_PEER_LOST, 0, kCause);
    rank.require(blocked.await(rank.hang_limit(kEndLimit)), "abort ends " + name, "it has not returned");
    rank.check_time(watch.took(blocked.ended_at()), rank.scaled(kAbortBound), "abort ends " + name);
    const bool can_succeed = rooted(shape.op);
    rank.check(blocked.outcome().status != BP_AGAIN && (can_succeed || !blocked.outcome().ok()),
               name + " without rank 0 has failed", blocked.outcome().text());
  } else {
    rank.barrier();
  }
  rank.barrier();
}

void blocked_collective(Rank& rank) {
  const std::vector<uint32_t> ops = Collectives(rank).native_ops();
  for (const uint32_t op : ops) {
    for (const auto how : {Blocked::How::kInSubmit, Blocked::How::kInWait}) abort_collective(rank, op, how);
  }
}

// Rank 0 does not join. If the others wait for it in init, host.abort_requested must end their init.
void during_init(Rank& rank) {
  if (rank.id() != 0) {
    init::RawInit raw(rank, "never complete", rank.id(), rank.size(), BP_NO_TIMEOUT);
    Outcome outcome;
    Nanoseconds ended = 0;
    rank.step("in init without rank 0");
    {
      const TestThread starting([&] {
        outcome = raw.run();
        ended = now();
      });
      starting.await(100 * kMillisecond);
      rank.step("in init without rank 0, abort requested");
      const Stopwatch watch;
      raw.request_abort();
      rank.require(starting.await(rank.hang_limit(kEndLimit)), "init gives up when abort_requested says so",
                   "it has not returned");
      rank.check_time(watch.took(ended), rank.scaled(kAbortBound),
                      "init without rank 0 ends when an abort is requested");
    }
    rank.check(outcome.ok() || outcome.status == BP_CANCELLED, "init gives up with BP_CANCELLED, or had not waited",
               outcome.text());
    raw.close();
  }
  rank.barrier();
  const auto agent = rank.open(in_space("complete"));
  ring(rank, *agent, "in a group that was made after another init was given up", 1);
}

void many_pending(Rank& rank) {
  constexpr uint64_t kCount = 200;
  const auto agent = rank.open();
  std::vector<std::vector<uint8_t>> memory(kCount, std::vector<uint8_t>(64));
  rank.barrier();
  if (aborts(rank)) {
    std::vector<Pending> all;
    for (uint64_t i = 0; i < kCount; ++i) {
      bp_op op = unmatched_recv(*agent, memory[i].data(), memory[i].size());
      op.tag -= i;
      op.peer = static_cast<int32_t>(i % static_cast<uint64_t>(rank.size()));
      all.push_back(agent->submit(op));
      rank.require_ok(all.back().submitted(), fmt::format("submit of recv {}", i));
    }
    rank.step(fmt::format("aborting with {} operations in flight", kCount));
    const Stopwatch watch;
    agent->abort(BP_PEER_LOST, 0, kCause);
    for (uint64_t i = 0; i < kCount; ++i) {
      const Outcome outcome = all[i].wait(rank.hang_limit(kEndLimit));
      rank.require(outcome.status == BP_PEER_LOST && outcome.text().find(kCause) != std::string::npos,
                   fmt::format("operation {} of {} in flight fails with the cause of the abort", i, kCount),
                   outcome.text());
    }
    rank.check_time(watch.took(), rank.scaled(kAbortBound), "abort ends all operations");
    std::shuffle(all.begin(), all.end(), rank.random());
    for (Pending& one : all) one.release();
    close_in_time(rank, *agent, "after an abort with many operations in flight");
  }
  rank.barrier();
}

// One thread submits continuously; abort comes at a random moment.
void beside_submits(Rank& rank) {
  const auto agent = rank.open();
  rank.barrier();
  if (aborts(rank)) {
    std::vector<Pending> all;
    std::vector<std::vector<uint8_t>> memory;
    Outcome refused;
    std::atomic<uint64_t> submitted = 0;
    rank.step("aborting while another thread submits");
    {
      const TestThread submitting([&] {
        for (uint64_t i = 0; i < 100'000 && refused.ok(); ++i) {
          memory.emplace_back(16);
          all.push_back(agent->submit(unmatched_recv(*agent, memory.back().data(), 16)));
          refused = all.back().submitted();
          submitted.fetch_add(1);
          if (i >= 2000) static_cast<void>(all.back().wait(kMillisecond));  // bounds the operations in flight
        }
      });
      poll_until(rank.hang_limit(kEndLimit), [&] { return submitted.load() > 100; });
      agent->abort(BP_PEER_LOST, 0, kCause);
      rank.require(submitting.await(rank.hang_limit(kEndLimit)), "submit fails after abort", "it has not returned");
    }
    expect_cause(rank, refused, BP_PEER_LOST, "submit after abort");
    for (Pending& one : all) {
      const Outcome outcome = one.wait(rank.scaled(kSecond));
      rank.require(outcome.status == BP_PEER_LOST, "each operation that was in flight fails with the cause's status",
                   outcome.text());
      one.release();
    }
  }
  rank.barrier();
}

}  // namespace

std::vector<Case> abort_cases() {
  return {
      Case("blocked-recv", "abort from another thread ends a blocked recv within 500 ms with its cause", blocked_recv),
      Case("blocked-any-source", "abort ends a blocked recv from BP_ANY_SOURCE within 500 ms with its cause",
           blocked_any_source, {.flags = BP_BACKEND_ANY_SOURCE}),
      Case("blocked-send", "abort ends a blocked send within 500 ms with its cause", blocked_send,
           {.flags = BP_BACKEND_TAGS}),
      Case("blocked-collective", "abort ends each native collective that is blocked within 500 ms with its cause",
           blocked_collective, {.ops = 0, .ranks = 2}, {.deadline = 60 * kSecond}),
      Case("during-init", "host.abort_requested ends a waiting init within 500 ms", during_init,
           {.without = BP_BACKEND_BLOCKING_INIT, .ranks = 2}),
      Case("many-pending", "abort ends all operations in flight, each with the cause", many_pending),
      Case("beside-submits", "abort may come while another thread submits", beside_submits),
  };
}

}  // namespace backplane::conformance
