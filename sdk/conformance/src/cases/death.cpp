// SPDX-License-Identifier: Apache-2.0
//
// Ranks that die. As the core would, the monitors of all other ranks abort with the name of the lost rank.
#include <poll.h>
#include <signal.h>

#include <thread>

#include "../names.hpp"
#include "async_support.hpp"
#include "collectives_call.hpp"
#include "death_after.hpp"
#include "endings.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr size_t kLarge = size_t{4} << 20;  // larger than any eager limit

using End = void (*)(Rank& rank);

void by_kill(Rank& rank) { die(rank, SIGKILL); }
void by_fault(Rank& rank) { die(rank, SIGSEGV); }
void by_stop(Rank& rank) { freeze(rank, -1); }

[[noreturn]] void die_when_ready(Rank& rank, Deaths& deaths, End end) {
  rank.step("waiting for its end");
  deaths.await_ready();
  end(rank);
  rank.harness_error("a rank that should have ended is still running");
}

// Waits for a message that is never sent. Half of the ranks wait inside submit.
Outcome wait_in_vain(Rank& rank, Agent& agent, int32_t peer, uint64_t tag) {
  char byte = 0;
  bp_op op = recv_op(peer, tag, &byte, 1);
  op.timeout_ns = rank.hang_limit(6 * kSecond);
  if (rank.id() % 2 == 1) op.flags = BP_OP_SYNC;
  return agent.run(op);
}

void idle(Rank& rank) {
  Deaths deaths(rank, {rank.size() - 1});
  auto agent = rank.open({}, true);
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (deaths.doomed()) die_when_ready(rank, deaths, by_kill);
  deaths.ready();
  deaths.await_loss();
  rank.step("receiving from a rank that was killed while the group was idle");
  deaths.expect_out(wait_in_vain(rank, *agent, rank.size() - 1, 2), "a recv from the lost rank", true);
  deaths.carry_on(std::move(agent));
}

// A small recv from each victim, a large send to it, and a wait for a survivor are in flight when they die.
void mid_operation(Rank& rank, const std::vector<int32_t>& victims, End end) {
  Deaths deaths(rank, victims);
  auto agent = rank.open({}, true);
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (deaths.doomed()) die_when_ready(rank, deaths, end);
  std::vector<char> byte(1);
  const std::vector<char> large(kLarge);
  Pending from = agent->irecv(victims.front(), 2, byte.data(), 1);
  Pending to = agent->isend(victims.front(), 3, large.data(), large.size());
  rank.step("waiting for a survivor when a rank dies");
  deaths.ready();
  const Outcome other = wait_in_vain(rank, *agent, deaths.companion(), 4);
  deaths.expect_out(other, fmt::format("a recv from rank {}", deaths.companion()), deaths.survivors().size() < 2);
  rank.step("waiting for operations with a rank that died");
  deaths.expect_out(from.finish(rank.scaled(5 * kSecond)), "a recv from the lost rank", victims.size() == 1);
  const Outcome sent = to.finish(rank.scaled(5 * kSecond));
  if (!sent.ok()) deaths.expect_out(sent, "a send to the lost rank", false);
  deaths.carry_on(std::move(agent));
}

// All ranks wait for rank 0, which often has special tasks: it makes keys, accepts connections, is the root.
void root(Rank& rank) {
  Deaths deaths(rank, {0});
  auto agent = rank.open({}, true);
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (deaths.doomed()) die_when_ready(rank, deaths, by_kill);
  deaths.ready();
  rank.step("waiting for the root when it dies");
  Outcome outcome;
  const bp_capability* broadcast = rank.capability(BP_BROADCAST);
  if (broadcast != nullptr && (broadcast->dtypes & BP_BIT(BP_U8)) != 0) {
    std::vector<char> data(1000);
    bp_op op = make_op(BP_BROADCAST);
    op.timeout_ns = rank.hang_limit(6 * kSecond);
    op.output = {data.data(), data.size(), BP_HOST, 0};
    outcome = agent->run(op);
  } else {
    outcome = wait_in_vain(rank, *agent, 0, 2);
  }
  deaths.expect_out(outcome, "an operation that needs the root", false);
  deaths.carry_on(std::move(agent));
}

// The victim has never communicated; the others wait for each other.
void non_neighbour(Rank& rank) {
  Deaths deaths(rank, {rank.size() - 1});
  auto agent = rank.open({}, true);
  if (!deaths.doomed()) exchange(rank, *agent, deaths.survivors(), 1, 1000);
  rank.barrier();
  if (deaths.doomed()) die_when_ready(rank, deaths, by_kill);
  deaths.ready();
  rank.step("waiting for a survivor when a rank without traffic dies");
  deaths.expect_out(wait_in_vain(rank, *agent, deaths.companion(), 2),
                    fmt::format("a recv from rank {}", deaths.companion()), false);
  deaths.carry_on(std::move(agent));
}

// Dies at a random moment while the caller continues.
std::thread die_soon(Rank& rank, int most_milliseconds) {
  const int delay = static_cast<int>(rank.random()() % static_cast<uint64_t>(most_milliseconds + 1));
  return std::thread([&rank, delay] {
    poll(nullptr, 0, delay);
    die(rank, SIGKILL);
  });
}

void mid_collective(Rank& rank) {
  const int32_t victim = 1 % rank.size();
  Deaths deaths(rank, {victim});
  auto agent = rank.open({}, true);
  std::vector<float> in(20'000, 1.0F);
  std::vector<float> out(in.size());
  bp_op op = make_op(BP_ALL_REDUCE, BP_F32);
  op.reduce_op = BP_SUM;
  op.timeout_ns = rank.hang_limit(6 * kSecond);
  op.input = {in.data(), in.size(), BP_HOST, 0};
  op.output = {out.data(), out.size(), BP_HOST, 0};
  rank.barrier();
  std::thread killer;
  if (deaths.doomed()) killer = die_soon(rank, 20);
  rank.step("in all_reduce when a rank dies");
  Outcome outcome;
  for (op.seq = 1; outcome.ok(); ++op.seq) {
    op.flags = op.seq % 2 == 0 ? static_cast<uint64_t>(BP_OP_SYNC) : 0;
    outcome = agent->run(op);
  }
  if (killer.joinable()) killer.join();
  deaths.expect_out(outcome, "all_reduce", false);
  deaths.carry_on(std::move(agent));
}

// A native collective in flight, in a group of its own.
struct InFlight {
  InFlight(Rank& rank, uint32_t op) : group(rank, in_space(fmt::format("group for {}", op_name(op)))), op(op) {
    rank.monitor().guard(group.agent());
  }
  void submit(const Rank& rank) {
    call = std::make_unique<Call>(usual_shape(*group.native(op), 100), rank.id(), rank.size());
    pending = group.submit(*call);
  }

  Collectives group;
  uint32_t op;
  std::unique_ptr<Call> call = {};
  Pending pending = {};
};

// Collectives of each kind are in flight, which the rank that dies has not entered.
void each_collective(Rank& rank) {
  Deaths deaths(rank, {rank.size() - 1});
  std::vector<std::unique_ptr<InFlight>> all;
  for (const uint32_t op : Collectives(rank).native_ops()) all.push_back(std::make_unique<InFlight>(rank, op));
  rank.barrier();
  if (deaths.doomed()) die_when_ready(rank, deaths, by_kill);
  for (const auto& each : all) each->submit(rank);
  rank.step("waiting for collectives of each kind when a rank dies");
  deaths.ready();
  for (const auto& each : all) {
    const Outcome outcome = each->pending.finish(rank.hang_limit(6 * kSecond));
    const bool can_succeed = rooted(each->op) || each->op == BP_SCAN || each->op == BP_EXSCAN;
    if (!can_succeed || !outcome.ok()) deaths.expect_out(outcome, op_name(each->op), false);
  }
  for (size_t i = 1; i < all.size(); ++i) close_quickly(rank, all[i]->group.take_agent());
  deaths.carry_on(all[0]->group.take_agent());
}

// The init of the others may succeed or fail, but must end within its timeout.
void die_in_init(Rank& rank, bool before) {
  Deaths deaths(rank, {1 % rank.size()});
  Plan plan;
  plan.timeout = 2 * kSecond;
  rank.barrier();
  if (deaths.doomed() && before) {
    die(rank, SIGKILL);
  }
  std::thread killer;
  if (deaths.doomed()) killer = die_soon(rank, 3);
  const Stopwatch watch;
  Outcome outcome;
  std::unique_ptr<Agent> agent = rank.try_open(plan, outcome, true);
  const Nanoseconds took = watch.took();
  if (killer.joinable()) killer.join();
  rank.check_time(took, rank.scaled(3 * kSecond), "an init with a timeout of 2 s (scaled) ends when a rank dies");
  deaths.await_loss();
  if (agent != nullptr) {
    rank.step("receiving from a rank that died during init");
    const Outcome received = wait_in_vain(rank, *agent, 1 % rank.size(), 2);
    rank.check(received.status == BP_PEER_LOST, "a recv from a rank that died during init ends with BP_PEER_LOST",
               received.text());
    deaths.barrier("out");
    deaths.carry_on(std::move(agent));
  } else {
    rank.check(outcome.error.text[0] != '\0', "an init that fails says why", "its error has no text");
    deaths.barrier("out");
    deaths.regroup();
  }
}

// A process that is stopped for two seconds must not count as dead.
void short_stop(Rank& rank) {
  auto agent = rank.open();
  const int32_t sleeper = 1 % rank.size();
  for (uint64_t round = 0; round < 12; ++round) {
    const size_t bytes = round % 2 == 0 ? 100 : 300'000;
    if (round == 4) {
      rank.step("exchanging messages while one rank stands still for two seconds");
      if (rank.id() == sleeper) freeze(rank, 2 * kSecond);
    }
    exchange(rank, *agent, round, bytes);
  }
  rank.barrier();
  close_quickly(rank, std::move(agent));
}

// A rank that leaves in an orderly way: its messages arrive, and only operations that need it fail.
void clean_exit(Rank& rank) {
  constexpr int kMessages = 3;
  constexpr size_t kBytes = 500;
  const int32_t leaver = rank.size() - 1;
  Deaths deaths(rank, {leaver});
  auto agent = rank.open({}, true);
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (rank.id() == leaver) {
    deaths.await_ready();
    for (const int32_t peer : deaths.survivors()) {
      const std::vector<char> data = payload(leaver, peer, 2, kBytes);
      int done = 0;
      while (done < kMessages && agent->isend(peer, 2, data.data(), kBytes).finish(rank.scaled(2 * kSecond)).ok()) {
        ++done;
      }
      rank.publish(fmt::format("done/{}", peer), std::to_string(done));
    }
    agent->close();
    depart(rank);
  }
  std::vector<std::vector<char>> received(kMessages, std::vector<char>(kBytes));
  std::vector<Pending> pending;
  for (auto& buffer : received) pending.push_back(agent->irecv(leaver, 2, buffer.data(), kBytes));
  deaths.ready();
  deaths.await_loss();
  rank.step("using a group that one rank has left in order");
  if (deaths.survivors().size() > 1) exchange(rank, *agent, deaths.survivors(), 3, 1000);
  const int done = std::atoi(rank.await_value(fmt::format("done/{}", rank.id())).c_str());
  for (int i = 0; i < done; ++i) {
    rank.require_ok(pending[static_cast<size_t>(i)].finish(rank.scaled(5 * kSecond)),
                    fmt::format("receiving message {} of {} that were sent before the sender left", i + 1, done));
    rank.require(received[static_cast<size_t>(i)] == payload(leaver, rank.id(), 2, kBytes),
                 "the bytes that were sent before the sender left", "others");
  }
  pending.clear();
  rank.step("waiting for a rank that has left");
  char byte = 0;
  bp_op op = recv_op(leaver, 4, &byte, 1);
  op.timeout_ns = rank.scaled(kSecond);
  op.flags = BP_OP_SYNC;
  const Outcome more = agent->run(op);
  rank.check(more.status == BP_PEER_LOST || more.status == BP_TIMEOUT || more.status == BP_CANCELLED,
             "a recv from a rank that has left ends with BP_PEER_LOST or in time", more.text());
  deaths.barrier("over");
  close_quickly(rank, std::move(agent));
}

}  // namespace

std::vector<Case> death_cases() {
  const Needs two = {.ranks = 2, .processes = true};
  const Needs three = {.ranks = 3, .processes = true};
  const Needs reduction = {
      .ops = BP_BIT(BP_SEND) | BP_BIT(BP_RECV) | BP_BIT(BP_ALL_REDUCE), .ranks = 2, .processes = true};
  const Needs abortable_init = {.without = BP_BACKEND_BLOCKING_INIT, .ranks = 2, .processes = true};
  const Execution slow = {.deadline = 30 * kSecond};
  return {
      Case("sigkill-idle", "the next operation reports a rank that was killed while the group was idle", idle, two,
           slow),
      Case(
          "sigkill-mid-operation", "all operations in flight end within 2 s when a rank is killed",
          [](Rank& rank) { mid_operation(rank, {1 % rank.size()}, by_kill); }, two, slow),
      Case("sigkill-mid-collective", "a native collective ends within 2 s when a rank is killed in it", mid_collective,
           reduction, slow),
      Case("sigkill-each-collective", "native collectives of each kind end within 2 s when a rank is killed",
           each_collective, {.ops = 0, .without = BP_BACKEND_ONE_WORLD, .ranks = 2, .processes = true}, slow),
      Case("sigkill-root", "the others survive the death of rank 0", root, two, slow),
      Case("sigkill-non-neighbour", "ranks that wait for each other return when a third one is killed", non_neighbour,
           three, slow),
      Case(
          "sigkill-during-init", "init ends in time when another rank is killed in it",
          [](Rank& rank) { die_in_init(rank, false); }, abortable_init, slow),
      Case(
          "sigkill-before-init", "init ends in time when another rank never comes because it was killed",
          [](Rank& rank) { die_in_init(rank, true); }, abortable_init, slow),
      Case(
          "sigkill-two-at-once", "the others survive two ranks that are killed at once",
          [](Rank& rank) {
            mid_operation(rank, {rank.size() - 1, rank.size() - 2}, by_kill);
          },
          three, slow),
      Case(
          "sigstop", "abort ends the others' operations when a rank is stopped for ever",
          [](Rank& rank) { mid_operation(rank, {1 % rank.size()}, by_stop); }, two, slow),
      Case("short-stop", "a rank that is stopped for two seconds does not count as dead", short_stop, two, slow),
      Case(
          "segfault", "the others survive a rank that crashes",
          [](Rank& rank) { mid_operation(rank, {rank.size() - 1}, by_fault); }, two, slow),
      Case("clean-exit-told-apart",
           "a rank that leaves in an orderly way loses no message and affects only operations that need it", clean_exit,
           two, slow),
  };
}

}  // namespace backplane::conformance
