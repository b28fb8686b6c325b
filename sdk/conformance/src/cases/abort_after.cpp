// SPDX-License-Identifier: Apache-2.0
//
// Guarantees after an abort: for the group, for other groups, and for operations that had ended before.
#include "async_support.hpp"

namespace backplane::conformance {
namespace {

constexpr const char* kFirstCause = "the first cause";

void expect_first_cause(Rank& rank, const Outcome& outcome, const std::string& what) {
  rank.check(outcome.status == BP_RESOURCE, what + " fails with BP_RESOURCE, the status of the cause", outcome.text());
  rank.check(outcome.text().find(kFirstCause) != std::string::npos, say(what, " says why: \"", kFirstCause, '"'),
             outcome.text());
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
      op.timeout_ns = rank.scaled(kPlenty);
      rank.step(say("submitting operation ", op.kind, " after abort"));
      const Nanoseconds begin = now();
      Pending pending = agent->submit(op);
      rank.check(!pending.in_flight(), "submit after abort fails itself", "it returns a work");
      expect_first_cause(rank, pending.submitted(), say("submit of an operation of kind ", op.kind, " after abort"));
      rank.check(now() - begin <= rank.scaled(kAbortBound), "submit after abort fails at once",
                 say("it took ", (now() - begin) / kMillisecond, " ms"));
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
    const Aside another([&] { agent->abort(BP_INTERNAL, -1, "the third cause"); });
  }
  expect_first_cause(rank, pending.wait(rank.scaled(kPlenty)), "an operation in flight");
  expect_first_cause(rank, agent->isend(rank.id(), 1, memory.data(), 1).submitted(), "submit after two aborts");
  pending.release();
  close_in_time(rank, *agent, "after two aborts");
  rank.barrier();
}

void new_group_afterwards(Rank& rank) {
  for (int round = 0; round < 5; ++round) {
    auto agent = rank.open(in_space(say("broken ", round)));
    std::vector<uint8_t> memory(100);
    std::vector<Pending> pending;
    pending.push_back(agent->submit(hopeless(*agent, memory.data(), memory.size())));
    rank.barrier();
    agent->abort(BP_RESOURCE, -1, kFirstCause);
    rank.require(pending[0].wait(rank.scaled(kPlenty)).status != BP_AGAIN, "an operation ends by abort",
                 "it is still in flight");
    pending[0].release();
    if (round % 2 == 0) {  // the broken group may also still be there
      close_in_time(rank, *agent, "after abort");
      agent.reset();
    }
    const auto fresh = rank.open(in_space(say("fresh ", round)));
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
  Pending lost = broken->submit(hopeless(*broken, memory.data(), memory.size()));
  rank.barrier();
  rank.step("aborting one of two groups");
  broken->abort(BP_RESOURCE, -1, kFirstCause);
  rank.require(lost.wait(rank.scaled(kPlenty)).status != BP_AGAIN, "an operation ends by abort",
               "it is still in flight");
  lost.release();
  const Outcome untouched = recv.test();
  rank.require(untouched.ok() || untouched.status == BP_AGAIN, "abort of one group leaves operations of another alone",
               untouched.text());
  rank.step("using the other one of two groups");
  Pending send = whole->isend(rank.next(), 1, sent.data(), sent.size());
  rank.require_ok(recv.finish(rank.scaled(kPlenty)), "a recv that was in flight in another group during abort");
  rank.require_ok(send.finish(rank.scaled(kPlenty)), "a send in another group than the aborted one");
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
  rank.require_ok(recv.wait(rank.scaled(kPlenty)), "a recv");
  rank.require_ok(send.wait(rank.scaled(kPlenty)), "a send");
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

// Destroy right after an abort that no other rank knows of.
void destroy_afterwards(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> memory(1000);
  ring(rank, *agent, "before abort", 1);
  rank.barrier();
  if (rank.id() == rank.size() - 1) {
    std::vector<uint8_t> large(kLarge, 1);
    Pending recv = agent->submit(hopeless(*agent, memory.data(), memory.size()));
    Pending send = agent->isend(rank.next(), kSilentTag - 1, large.data(), large.size());
    agent->abort(BP_RESOURCE, -1, kFirstCause);
    for (Pending* one : {&recv, &send}) {
      rank.require(one->wait(rank.scaled(kPlenty)).status != BP_AGAIN, "an operation ends by abort",
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
      {.group = "abort",
       .name = "submit-afterwards",
       .about = "after abort every submit fails at once with the status and the text of the cause",
       .body = submit_afterwards},
      {.group = "abort", .name = "twice", .about = "the first abort counts, later ones do nothing", .body = twice},
      {.group = "abort",
       .name = "new-group-afterwards",
       .about = "after abort the same processes can make a new group",
       .needs = {.without = BP_BACKEND_ONE_WORLD},
       .body = new_group_afterwards},
      {.group = "abort",
       .name = "leaves-others-alone",
       .about = "abort of one group does not affect others",
       .needs = {.without = BP_BACKEND_ONE_WORLD},
       .body = leaves_others_alone},
      {.group = "abort",
       .name = "done-stays-done",
       .about = "operations that were done before abort stay done",
       .body = done_stays_done},
      {.group = "abort",
       .name = "destroy-afterwards",
       .about = "destroy after abort does not wait for other ranks",
       .body = destroy_afterwards},
  };
}

}  // namespace backplane::conformance
