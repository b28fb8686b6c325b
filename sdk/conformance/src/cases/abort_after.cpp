// SPDX-License-Identifier: Apache-2.0
//
// Guarantees after an abort: for the group, for other groups, and for operations that had ended before.
#include <array>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr const char* kFirstCause = "the first cause";

void expect_first_cause(Rank& rank, const Outcome& outcome, const std::string& what) {
  rank.check(outcome.status == BP_RESOURCE, what + " fails with BP_RESOURCE, the status of the cause", outcome.text());
  rank.check(outcome.text().find(kFirstCause) != std::string::npos,
             fmt::format("{} says why: \"{}\"", what, kFirstCause), outcome.text());
}

// One operation of each native kind, of the smallest size.
std::vector<bp_op> one_of_each(Rank& rank, int32_t* memory, const std::vector<uint64_t>& zeros) {
  std::vector<bp_op> ops;
  for (uint32_t kind = 0; kind < BP_OP_COUNT; ++kind) {
    const bp_capability* can = rank.capability(kind);
    if (can == nullptr || (can->memory != 0 && (can->memory & rank.memory()) == 0)) continue;
    uint32_t dtype = 0;
    while (can->dtypes != 0 && (can->dtypes & BP_BIT(dtype)) == 0) ++dtype;
    bp_op op = make_op(kind, dtype);
    while (can->reduce_ops != 0 && (can->reduce_ops & BP_BIT(op.reduce_op)) == 0) ++op.reduce_op;
    op.peer = kind == BP_SEND || kind == BP_RECV ? rank.next() : 0;
    op.seq = kind + 1;
    op.scalar = memory + 8;
    op.input.data = op.output.data = memory;
    op.in_counts = op.in_displs = op.out_counts = op.out_displs = zeros.data();
    ops.push_back(op);  // counts of 0 are legal everywhere
  }
  return ops;
}

void submit_afterwards(Rank& rank) {
  const auto agent = rank.open();
  rank.barrier();
  agent->abort(BP_RESOURCE, -1, kFirstCause);
  std::vector<int32_t> memory(16);
  const std::vector<uint64_t> zeros(static_cast<size_t>(rank.size()));
  for (bp_op op : one_of_each(rank, memory.data(), zeros)) {
    for (const uint64_t flags : {uint64_t{0}, uint64_t{BP_OP_SYNC}}) {
      op.flags = flags;
      op.timeout_ns = rank.hang_limit(kEndLimit);
      rank.step(fmt::format("submitting operation {} after abort", op.kind));
      const Stopwatch watch;
      Pending pending = agent->submit(op);
      rank.check(!pending.in_flight(), "submit after abort fails itself", "it returns a work");
      expect_first_cause(rank, pending.submitted(),
                         fmt::format("submit of an operation of kind {} after abort", op.kind));
      rank.check_time(watch.took(), rank.scaled(kAbortBound), "submit after abort fails");
    }
  }
  rank.barrier();
}

void twice(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> memory(100);
  Pending pending = agent->submit(recv_op(rank.id(), kSilentTag, memory.data(), memory.size()));
  rank.barrier();
  rank.step("aborting twice");
  agent->abort(BP_RESOURCE, -1, kFirstCause);
  agent->abort(BP_TIMEOUT, -1, "the second cause");
  {
    const TestThread another([&] { agent->abort(BP_INTERNAL, -1, "the third cause"); });
  }
  expect_first_cause(rank, pending.wait(rank.hang_limit(kEndLimit)), "an operation in flight");
  expect_first_cause(rank, agent->isend(rank.id(), 1, memory.data(), 1).submitted(), "submit after two aborts");
  pending.release();
  close_in_time(rank, *agent, "after two aborts");
  rank.barrier();
}

// An operation that the thread of an abort submits when its own abort has returned.
Outcome submit_after_own_abort(Rank& rank, Agent& agent, uint64_t tag) {
  uint8_t byte = 0;
  Pending pending = agent.irecv(rank.id(), tag, &byte, 1);
  if (!pending.in_flight()) return pending.submitted();
  return pending.finish(rank.scaled(kAbortBound));
}

// Threads abort at the same moment, each with a cause of its own, and go on at once.
void at_once(Rank& rank) {
  constexpr std::array kStatuses = {BP_RESOURCE, BP_TIMEOUT, BP_INTERNAL};
  for (int round = 0; round < 15; ++round) {
    const auto agent = rank.open(in_space(fmt::format("at once {}", round)));
    uint8_t byte = 0;
    Pending in_flight = agent->irecv(rank.id(), kSilentTag, &byte, 1);
    rank.barrier();
    rank.step("aborting from three threads at once");
    std::array<Outcome, kStatuses.size()> seen;
    std::atomic<size_t> ready = 0;
    {
      std::vector<std::unique_ptr<TestThread>> threads;
      for (size_t i = 0; i < kStatuses.size(); ++i) {
        threads.push_back(std::make_unique<TestThread>([&, i] {
          ready.fetch_add(1);
          while (ready.load() < kStatuses.size()) std::this_thread::yield();
          agent->abort(kStatuses[i], -1, fmt::format("cause number {}", kStatuses[i]));
          seen[i] = submit_after_own_abort(rank, *agent, kSilentTag - 1 - i);
        }));
      }
    }
    const Outcome first = in_flight.finish(rank.hang_limit(kEndLimit));
    const std::string cause = fmt::format("cause number {}", first.status);
    rank.require(first.text().find(cause) != std::string::npos,
                 "an operation in flight fails with the status and the text of one cause", first.text());
    for (const Outcome& outcome : seen) {
      rank.require(outcome.status == first.status && outcome.text().find(cause) != std::string::npos,
                   "after an abort all operations fail with the first cause, as the one in flight did: " + first.text(),
                   outcome.text());
    }
    rank.barrier();
    close_in_time(rank, *agent, "after aborts from three threads");
  }
}

void new_group_afterwards(Rank& rank) {
  for (int round = 0; round < 5; ++round) {
    auto agent = rank.open(in_space(fmt::format("broken {}", round)));
    std::vector<uint8_t> memory(100);
    std::vector<Pending> pending;
    pending.push_back(agent->submit(unmatched_recv(*agent, memory.data(), memory.size())));
    rank.barrier();
    agent->abort(BP_RESOURCE, -1, kFirstCause);
    rank.require(pending[0].wait(rank.hang_limit(kEndLimit)).status != BP_AGAIN, "an operation ends by abort",
                 "it is still in flight");
    pending[0].release();
    if (round % 2 == 0) {  // the broken group may also still be there
      close_in_time(rank, *agent, "after abort");
      agent.reset();
    }
    const auto fresh = rank.open(in_space(fmt::format("fresh {}", round)));
    ring(rank, *fresh, "in a new group after an abort", 1, static_cast<uint64_t>(round));
  }
}

void leaves_others_alone(Rank& rank) {
  const auto broken = rank.open(in_space("broken"));
  const auto whole = rank.open(in_space("whole"));
  std::vector<uint8_t> got(1000);
  std::vector<uint8_t> memory(100);
  const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()), 1000);
  Pending recv = whole->irecv(rank.previous(), 1, got.data(), got.size());
  Pending lost = broken->submit(unmatched_recv(*broken, memory.data(), memory.size()));
  rank.barrier();
  rank.step("aborting one of two groups");
  broken->abort(BP_RESOURCE, -1, kFirstCause);
  rank.require(lost.wait(rank.hang_limit(kEndLimit)).status != BP_AGAIN, "an operation ends by abort",
               "it is still in flight");
  lost.release();
  const Outcome untouched = recv.test();
  rank.require(untouched.ok() || untouched.status == BP_AGAIN, "abort of one group leaves operations of another alone",
               untouched.text());
  rank.step("using the other one of two groups");
  Pending send = whole->isend(rank.next(), 1, sent.data(), sent.size());
  rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)), "a recv that was in flight in another group during abort");
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send in another group than the aborted one");
  require_bytes(rank, got, static_cast<uint64_t>(rank.previous()), "a message of another group than the aborted one");
  close_in_time(rank, *broken, "after abort");
  ring(rank, *whole, "in another group than the aborted and destroyed one", 2);
}

void done_stays_done(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> got(500);
  const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()), 500);
  Pending recv = agent->irecv(rank.previous(), 1, got.data(), got.size());
  Pending send = agent->isend(rank.next(), 1, sent.data(), sent.size());
  rank.require_ok(recv.wait(rank.hang_limit(kEndLimit)), "a recv");
  rank.require_ok(send.wait(rank.hang_limit(kEndLimit)), "a send");
  rank.barrier();
  rank.step("aborting after all operations were done");
  agent->abort(BP_RESOURCE, -1, kFirstCause);
  for (Pending* one : {&recv, &send}) {
    const Outcome outcome = one->wait(0);
    rank.check(outcome.ok(), "an operation that was done before abort stays so", outcome.text());
    one->release();
  }
  require_bytes(rank, got, static_cast<uint64_t>(rank.previous()), "the message");
  rank.barrier();
}

// Destroy right after an abort of this rank alone.
void destroy_afterwards(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> memory(1000);
  ring(rank, *agent, "before abort", 1);
  rank.barrier();
  if (rank.id() == rank.size() - 1) {
    std::vector<uint8_t> large(kLarge, 1);
    Pending recv = agent->submit(unmatched_recv(*agent, memory.data(), memory.size()));
    Pending send = agent->isend(rank.next(), kSilentTag - 1, large.data(), large.size());
    agent->abort(BP_RESOURCE, -1, kFirstCause);
    for (Pending* one : {&recv, &send}) {
      rank.require(one->wait(rank.hang_limit(kEndLimit)).status != BP_AGAIN, "an operation ends by abort",
                   "it is still in flight");
      one->release();
    }
    close_in_time(rank, *agent, "right after abort");
  }
  rank.barrier();
  close_in_time(rank, *agent, "after another rank aborted and destroyed");
}

}  // namespace

std::vector<Case> abort_after_cases() {
  return {
      Case("submit-afterwards", "after abort every submit fails at once with the status and the text of the cause",
           submit_afterwards),
      Case("twice", "the first abort counts, later ones do nothing", twice),
      Case("at-once", "of several aborts at once one counts, for every operation from then on", at_once,
           {.without = BP_BACKEND_ONE_WORLD}),
      Case("new-group-afterwards", "after abort the same processes can make a new group", new_group_afterwards,
           {.without = BP_BACKEND_ONE_WORLD}),
      Case("leaves-others-alone", "abort of one group does not affect others", leaves_others_alone,
           {.without = BP_BACKEND_ONE_WORLD}),
      Case("done-stays-done", "operations that were done before abort stay done", done_stays_done),
      Case("destroy-afterwards", "destroy after abort does not wait for other ranks", destroy_afterwards),
  };
}

}  // namespace backplane::conformance
