// SPDX-License-Identifier: Apache-2.0
//
// Interruptions of operations that block inside submit ("backplane.interrupt/1").
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "async_support.hpp"
#include "backplane/abi/ext/interrupt.h"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr Nanoseconds kAskedLimit = 5 * kSecond;  // of operations that the program interrupts; to be scaled
constexpr Nanoseconds kEndedLimit = 2 * kSecond;  // from the answer 1 to the end of the operation; to be scaled

// One operation that blocks inside submit, and the backend's questions meanwhile.
struct Submission {
  std::function<bool(int)> answer;  // to the nth question: whether the program interrupts
  int questions = 0;
  std::optional<Stopwatch> interrupted = {};  // begins when the program interrupts
};
thread_local Submission* blocking = nullptr;  // of this thread

// The program that the backend asks. One for each agent.
class Program {
 public:
  Program(Rank& rank, Agent& agent) : rank_(rank), agent_(agent) {
    const auto* api = static_cast<const bp_interrupt_api*>(agent.api().extension(agent.self(), BP_EXT_INTERRUPT));
    if (api == nullptr) rank.skip(fmt::format("the backend does not ask for interruptions ({})", BP_EXT_INTERRUPT));
    rank.require(BP_HAS(api, ask) && api->ask != nullptr, fmt::format("a table of {} with ask", BP_EXT_INTERRUPT),
                 "one without");
    api->ask(api->ctx, interrupted, &state_);
  }

  // Submits with BP_OP_SYNC. BP_AGAIN: submit does not block for this operation; then the group is aborted.
  Outcome run(bp_op op, Submission& submission) {
    op.flags |= BP_OP_SYNC;
    blocking = &submission;
    Pending pending = agent_.submit(op);
    blocking = nullptr;
    Outcome outcome = pending.submitted();
    if (!pending.in_flight()) return outcome;
    agent_.abort(BP_CANCELLED, -1, "the case is over");
    static_cast<void>(pending.finish(0));
    outcome.status = BP_AGAIN;
    return outcome;
  }

  // Calls the group, first on another thread, where a lock that the backend holds is noticed. For use in an answer:
  // check_calls reports.
  void call_group() {
    auto* const calling = new TestThread([this, state = &state_] { use_group(*state, state->memory.data()); });
    if (calling->await(rank_.hang_limit(kEndLimit))) {
      delete calling;
      use_group(state_, state_.memory.data());
    } else {
      state_.waiting = calling;
    }
  }
  void check_calls() {
    if (state_.waiting != nullptr) state_.waiting->await(rank_.hang_limit(kEndLimit));  // else it is left behind
    rank_.require(state_.waiting == nullptr, "a group that can be used while it asks",
                  "a call that waits for the answer");
    rank_.require(state_.failure.ok(), "a group that can be used while it asks", state_.failure.text());
  }

  void check_others() {
    rank_.require(state_.others == 0,
                  "questions on the threads that are inside submit with BP_OP_SYNC, one at a time, and on no other",
                  fmt::format("{} other questions", state_.others.load()));
  }
  void check_interrupted(const Submission& submission, const Outcome& outcome, const std::string& what) {
    const Nanoseconds took = submission.interrupted ? submission.interrupted->took() : 0;
    check_others();
    rank_.require(submission.questions > 0, what + " asks the program", "no question; " + outcome.text());
    rank_.require(outcome.status == BP_CANCELLED, what + " ends with BP_CANCELLED when the program interrupts",
                  outcome.text());
    rank_.check(std::string_view(outcome.error.text).starts_with("interrupted by the program"),
                "an error text that begins with \"interrupted by the program\"", outcome.text());
    rank_.check_time(took, rank_.scaled(kEndedLimit), "an interruption ends " + what);
  }

 private:
  struct State {
    std::atomic<int> others = 0;    // questions outside of submit with BP_OP_SYNC
    TestThread* waiting = nullptr;  // in a call that needs a lock of the backend
    Outcome failure;                // of the group's use; written by one thread at a time
    std::array<char, 16> memory = {};
  };

  static int32_t interrupted(void* to) {
    Submission* const here = std::exchange(blocking, nullptr);
    if (here == nullptr) {
      ++static_cast<State*>(to)->others;
      return 0;
    }
    const bool interrupts = here->answer(++here->questions);
    if (interrupts && !here->interrupted) here->interrupted.emplace();
    blocking = here;
    return interrupts ? 1 : 0;
  }
  void use_group(State& state, void* memory) {
    if (!rank_.has_flag(BP_BACKEND_TAGS) || rank_.capability(BP_RECV) == nullptr) return;
    Pending recv = agent_.submit(unmatched_recv(agent_, memory, state.memory.size()));
    if (!recv.in_flight()) {
      state.failure = recv.submitted();
      if (state.failure.ok()) state.failure.status = BP_INTERNAL;  // no message matches
      return;
    }
    recv.cancel();
    const Outcome outcome = recv.wait(kSecond / 5);
    if (outcome.status == BP_CANCELLED) return recv.release();
    if (outcome.status != BP_AGAIN) state.failure = outcome;
  }

  Rank& rank_;
  Agent& agent_;
  State& state_ = *new State;  // never freed: an agent or a thread that was left behind may still use it
};

bp_op recv_from_previous(const Rank& rank, uint64_t tag, std::vector<uint8_t>& memory, Nanoseconds timeout) {
  bp_op op = recv_op(rank.previous(), tag, memory.data(), memory.size());
  op.timeout_ns = rank.scaled(timeout);
  return op;
}

// The rule is 100 ms. A busy machine delays this thread, so an average of 200 ms counts, in one of three attempts.
void expect_questions(Rank& rank, Program& program, std::vector<uint8_t>& memory) {
  constexpr int kEnough = 5;
  rank.step("counting questions during a recv that waits");
  int most = 0;
  for (int i = 0; i < 3 && most < kEnough; ++i) {
    const Nanoseconds end = now() + rank.scaled(kSecond);
    Submission submission{[end](int) { return now() >= end; }};
    const Outcome outcome = program.run(recv_from_previous(rank, 1, memory, kAskedLimit), submission);
    if (outcome.status == BP_AGAIN) rank.skip("a recv with BP_OP_SYNC does not block inside submit");
    program.check_interrupted(submission, outcome, "a recv that waits inside submit");
    most = std::max(most, submission.questions);
  }
  rank.check(most >= kEnough,
             fmt::format("a question every 100 ms, at least {} in {} ms", kEnough, rank.scaled(kSecond) / kMillisecond),
             fmt::format("at most {} in three attempts", most));
}

// A recv that the program does not interrupt receives the message that the program sends when it is asked.
void expect_message(Rank& rank, Agent& agent, Program& program, std::vector<uint8_t>& memory) {
  const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()) + 1, memory.size());
  Pending send;
  const auto begin_send = [&] { send = agent.isend(rank.next(), 2, sent.data(), sent.size()); };
  rank.barrier();
  rank.step("receiving a message that the program sends when it is asked");
  Submission submission{[&](int question) {
    if (question == 2) begin_send();
    return false;
  }};
  const Outcome outcome = program.run(recv_from_previous(rank, 2, memory, kEndLimit), submission);
  if (submission.questions < 2) begin_send();  // the message of the rank before came first
  rank.require_ok(outcome, "a recv that the program does not interrupt");
  require_bytes(rank, memory, static_cast<uint64_t>(rank.previous()) + 1, "the message");
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send that began while the group asked");
}

void expect_deadline(Rank& rank, Program& program, std::vector<uint8_t>& memory) {
  constexpr Nanoseconds kTimeout = 300 * kMillisecond;
  const Nanoseconds allowed = kTimeout + rank.scaled(100 * kMillisecond);
  rank.step("waiting for the deadline of a recv that asks");
  Nanoseconds took = 0;
  for (int i = 0; i < 3; ++i) {
    Submission submission{[](int) { return false; }};
    bp_op op = recv_from_previous(rank, 1, memory, 0);
    op.timeout_ns = kTimeout;
    const Stopwatch watch;
    const Outcome outcome = program.run(op, submission);
    took = watch.took();
    rank.require(outcome.status == BP_TIMEOUT, "a recv that asks ends with BP_TIMEOUT at its deadline", outcome.text());
    if (watch.elapsed() >= kTimeout - kMillisecond && took <= allowed) return;
  }
  rank.check(false, fmt::format("a deadline of 300 ms that is kept to at most {} ms", allowed / kMillisecond),
             fmt::format("it took {} ms, and about as wrong a time three times in a row", took / kMillisecond));
}

// Two threads, each asked by its own operation.
void expect_threads(Rank& rank, Program& program, std::vector<uint8_t>& memory) {
  rank.step("interrupting recvs in two threads");
  std::vector<uint8_t> other_memory(memory.size());
  Submission other{[](int question) { return question >= 3; }};
  Submission mine{[](int question) { return question >= 3; }};
  Outcome other_outcome;
  Outcome outcome;
  {
    const TestThread thread([&] {
      const bp_op op = recv_from_previous(rank, 3, other_memory, kAskedLimit);
      other_outcome = program.run(op, other);
    });
    outcome = program.run(recv_from_previous(rank, 4, memory, kAskedLimit), mine);
    rank.require(thread.await(rank.hang_limit(2 * kAskedLimit)), "a recv of another thread ends", "it waits");
  }
  program.check_interrupted(mine, outcome, "a recv beside one of another thread");
  rank.require(other_outcome.status == BP_CANCELLED && other.questions > 0,
               "a recv of another thread asks on that thread and ends with BP_CANCELLED",
               fmt::format("{} questions; {}", other.questions, other_outcome.text()));
}

void interrupt_message(Rank& rank) {
  const auto agent = rank.open();
  Program program(rank, *agent);
  std::vector<uint8_t> memory(1000);
  expect_questions(rank, program, memory);

  rank.step("calling the group while a recv asks");
  Submission submission{[&](int question) {
    if (question == 1) program.call_group();
    return question >= 3;
  }};
  const Outcome outcome = program.run(recv_from_previous(rank, 1, memory, 2 * kEndLimit), submission);
  program.check_calls();
  program.check_interrupted(submission, outcome, "a recv during which the program calls the group");

  expect_message(rank, *agent, program, memory);
  expect_deadline(rank, program, memory);
  expect_threads(rank, program, memory);

  rank.step("waiting in work_wait, which does not ask");
  Pending recv = agent->irecv(rank.previous(), 5, memory.data(), memory.size());
  static_cast<void>(recv.wait(kSecond / 3));
  program.check_others();
  rank.barrier();
  const std::vector<uint8_t> sent = bytes_of(1, memory.size());
  Pending send = agent->isend(rank.next(), 5, sent.data(), sent.size());
  rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)), "a recv without BP_OP_SYNC");
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send without BP_OP_SYNC");
  for (const uint64_t tag : {1, 3, 4}) ring(rank, *agent, "after recvs with its tag were interrupted", tag);
  rank.barrier();
  agent->close();
  program.check_others();
}

// All ranks but the last enter a collective that cannot end without it.
void interrupt_collective(Rank& rank) {
  const auto agent = rank.open();
  Program program(rank, *agent);
  int32_t memory = 1;
  bp_op op;
  if (!make_collective(rank, op, &memory)) rank.skip("no native collective for which all ranks have to come");
  const bool is_last = rank.id() == rank.size() - 1;

  rank.step("in a collective without BP_OP_SYNC, which does not ask");
  Pending pending;
  if (!is_last) {
    pending = agent->submit(op);
    if (pending.in_flight()) static_cast<void>(pending.wait(kSecond / 3));
  }
  rank.barrier();
  if (is_last) pending = agent->submit(op);
  rank.require_ok(pending.finish(rank.hang_limit(kEndLimit)), "a collective without BP_OP_SYNC");
  program.check_others();
  rank.barrier();

  op.seq = 2;
  op.timeout_ns = rank.hang_limit(kEndLimit);
  if (!is_last) {
    rank.step("in a collective for which the last rank does not come");
    Submission submission{[&](int question) {
      if (question == 1) program.call_group();
      return question >= 5;
    }};
    const Outcome outcome = program.run(op, submission);
    program.check_calls();
    // The interruption of one rank may end the group of others first.
    const bool is_lost = outcome.status == BP_PEER_LOST && rank.size() > 2;
    if (outcome.status != BP_AGAIN && !is_lost) {
      program.check_interrupted(submission, outcome, "a collective that waits inside submit");
    }
  }
  rank.barrier();
  rank.step("ending a group whose collective was interrupted");
  agent->abort(BP_CANCELLED, -1, "the case is over");
  close_in_time(rank, *agent, "after a collective was interrupted");
  program.check_others();
}

}  // namespace

std::vector<Case> async_interrupt_cases() {
  return {
      Case("interrupt-message",
           "a recv that blocks in submit asks the program every 100 ms, and ends when it interrupts", interrupt_message,
           {.flags = BP_BACKEND_TAGS}, {.deadline = 40 * kSecond}),
      Case("interrupt-collective",
           "a native collective that blocks in submit asks the program, and ends when it interrupts",
           interrupt_collective, {.ops = 0, .ranks = 2}, {.deadline = 40 * kSecond}),
  };
}

}  // namespace backplane::conformance
