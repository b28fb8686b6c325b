// SPDX-License-Identifier: Apache-2.0
//
// Group `init`: groups after, beside and before other groups of the same ranks.
#include "groups.hpp"
#include "init_groups.hpp"

namespace backplane::conformance::init {
namespace {

// Starts a group that the last rank does not join, and aborts it.
void fail_once(Rank& rank, const std::string& space) {
  const int32_t missing = rank.size() - 1;
  if (rank.id() != missing) {
    Outcome outcome;
    const auto agent = rank.try_open(plan_in(space, {}, 7 * kSecond / 10), outcome);
    if (agent != nullptr) {
      rank.step("receiving from a rank that has not come");
      uint32_t number = 0;
      bp_op op = recv_op(missing, 3, &number, sizeof number);
      op.timeout_ns = kSecond / 5;
      rank.check(!agent->run(op).ok(), "a failure of a recv from a rank that has not come", "success");
      rank.step("in destroy");
      agent->close();
    }
  }
  rank.barrier();
}

void retry_after_failure(Rank& rank) {
  for (int round = 0; round < 2; ++round) {
    fail_once(rank, fmt::format("fails/{}", round));
    const auto agent = rank.open(plan_in(fmt::format("works/{}", round)));
    rank.step("exchanging after a failed start");
    exchange_with_all(rank, *agent, 100);
    rank.barrier();
    rank.step("in destroy");
    agent->close();
  }
}

// The last rank joins a group that the others have aborted, and sends to any rank that it reaches, while all ranks,
// including itself, start another group.
void stale_session(Rank& rank) {
  constexpr uint32_t kStale = 0xdead0000U;
  fail_once(rank, "old");
  const bool late = rank.id() == rank.size() - 1;
  std::unique_ptr<Agent> old;
  std::vector<Pending> verified;
  std::vector<uint32_t> numbers(static_cast<size_t>(rank.size()), kStale);
  if (late) {
    for (int32_t peer = 0; peer + 1 < rank.size(); ++peer) rank.await_value(fmt::format("begins/{}", peer));
    Outcome outcome;
    old = rank.try_open(plan_in("old", {}, kSecond), outcome);
    for (int32_t peer = 0; old != nullptr && peer + 1 < rank.size(); ++peer) {
      verified.push_back(old->isend(peer, 12, &numbers[static_cast<size_t>(peer)], sizeof(uint32_t)));
    }
  } else {
    rank.publish(fmt::format("begins/{}", rank.id()), "");
  }
  const auto agent = rank.open(plan_in("new"));
  rank.step("exchanging beside a rank of an earlier session");
  for (uint32_t round = 0; round < 3; ++round) exchange_with_all(rank, *agent, 10 + round);
  rank.barrier();
  rank.step("ending the earlier session");
  for (Pending& send : verified) send.finish(0);
  if (old != nullptr) old->close();
  rank.step("exchanging after the end of the earlier session");
  rank.barrier();
  exchange_with_all(rank, *agent, 20);
  rank.barrier();
}

// The same ranks in two groups, the second in reverse order, with the same tags.
void two_worlds_at_once(Rank& rank) {
  const auto first = rank.open(plan_in("first"));
  Plan reversed = plan_in("second");
  reversed.rank = rank.size() - 1 - rank.id();
  for (int32_t i = rank.size(); i > 0; --i) reversed.global_ranks.push_back(i - 1);
  const auto second = rank.open(reversed);
  rank.step("exchanging in two groups at once");
  const auto size = static_cast<size_t>(rank.size());
  std::vector<uint32_t> received(2 * size);
  const uint32_t sent[2] = {1000 + static_cast<uint32_t>(first->rank()), 2000 + static_cast<uint32_t>(second->rank())};
  std::vector<Pending> pending;
  for (size_t i = 0; i < size; ++i) {
    const auto peer = static_cast<int32_t>(i);
    pending.push_back(second->irecv(peer, 4, &received[size + i], sizeof(uint32_t)));
    pending.push_back(first->isend(peer, 4, &sent[0], sizeof(uint32_t)));
    pending.push_back(second->isend(peer, 4, &sent[1], sizeof(uint32_t)));
    pending.push_back(first->irecv(peer, 4, &received[i], sizeof(uint32_t)));
  }
  for (Pending& each : pending) rank.require_ok(each.finish(rank.hang_limit(15 * kSecond)), "an operation");
  for (size_t i = 0; i < size; ++i) {
    rank.check(received[i] == 1000 + i, fmt::format("the number {} in the first group", 1000 + i),
               std::to_string(received[i]));
    rank.check(received[size + i] == 2000 + i, fmt::format("the number {} in the second group", 2000 + i),
               std::to_string(received[size + i]));
  }
  rank.barrier();
}

// Two groups end in either order; the remaining one is unaffected.
void destroy_twice(Rank& rank) {
  for (int round = 0; round < 4; ++round) {
    auto first = rank.open(plan_in(fmt::format("first/{}", round)));
    auto second = rank.open(plan_in(fmt::format("second/{}", round)));
    exchange_with_all(rank, *first, 1);
    exchange_with_all(rank, *second, 2);
    rank.barrier();
    if (round % 2 == 1) std::swap(first, second);
    rank.step(fmt::format("in destroy of the {} of two groups", round % 2 == 0 ? "first" : "second"));
    first->close();
    rank.step("exchanging in the group that is left");
    exchange_with_all(rank, *second, 3);
    rank.barrier();
    rank.step("in destroy of the group that is left");
    second->close();
  }
}

}  // namespace

std::vector<Case> session_cases() {
  const Needs again = {.without = BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT, .ranks = 2};
  const Needs beside = {.without = BP_BACKEND_ONE_WORLD};
  const Execution slow = {.deadline = 30 * kSecond};
  return {
      Case("stale-session", "a rank of an earlier session does not disturb a new one", stale_session, again, slow),
      Case("two-worlds-at-once", "two groups of the same ranks keep their messages apart", two_worlds_at_once, beside,
           slow),
      Case("retry-after-failure", "after a failed start the next one succeeds", retry_after_failure, again, slow),
      Case("destroy-twice", "groups end in either order, repeatedly", destroy_twice, beside, slow),
  };
}

}  // namespace backplane::conformance::init
