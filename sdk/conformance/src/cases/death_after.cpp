// SPDX-License-Identifier: Apache-2.0
#include "death_after.hpp"

#include <algorithm>
#include <optional>

#include "async_support.hpp"

namespace backplane::conformance {
namespace {

constexpr Nanoseconds kLimit = 2 * kSecond;
constexpr Nanoseconds kDestroyLimit = 5 * kSecond;

}  // namespace

Deaths::Deaths(Rank& rank, std::vector<int32_t> victims) : rank_(rank), victims_(std::move(victims)) {
  for (int32_t other = 0; other < rank.size(); ++other) {
    if (!is_victim(other)) survivors_.push_back(other);
  }
}

bool Deaths::is_victim(int32_t rank) const {
  return std::find(victims_.begin(), victims_.end(), rank) != victims_.end();
}

int32_t Deaths::companion() const {
  const auto me = std::find(survivors_.begin(), survivors_.end(), rank_.id());
  if (survivors_.size() < 2) return victims_.front();
  return me + 1 == survivors_.end() ? survivors_.front() : *(me + 1);
}

void Deaths::barrier(const std::string& where) {
  rank_.publish(fmt::format("survivors/{}/{}", where, rank_.id()), "");
  for (const int32_t other : survivors_) rank_.await_value(fmt::format("survivors/{}/{}", where, other));
}

void Deaths::ready() { rank_.publish(fmt::format("ready/{}", rank_.id()), ""); }

void Deaths::await_ready() {
  for (const int32_t other : survivors_) rank_.await_value(fmt::format("ready/{}", other));
}

bool Deaths::names_victim(const Outcome& outcome) const {
  if (is_victim(outcome.error.peer_rank)) return true;
  const std::string text = outcome.text();
  return std::any_of(victims_.begin(), victims_.end(), [&text](int32_t victim) {
    return text.find(fmt::format("rank {}", victim)) != std::string::npos;
  });
}

void Deaths::expect_out(const Outcome& outcome, const std::string& what, bool named) {
  const Nanoseconds end = now();
  const std::string step = rank_.world().step(rank_.id());
  await_loss();
  std::optional<Stopwatch> abort;
  poll_until(rank_.hang_limit(10 * kSecond), [&] { return (abort = rank_.monitor().first_abort()).has_value(); });
  if (!abort) rank_.harness_error("the monitor has not noticed the loss of a rank");
  rank_.step(step);
  rank_.check(outcome.status == BP_PEER_LOST,
              fmt::format("{} ends with BP_PEER_LOST when rank {} is lost", what, victims_.front()), outcome.text());
  rank_.check_time(abort->took(end), rank_.scaled(kLimit), fmt::format("the loss of a rank ends {}", what));
  if (named && outcome.status == BP_PEER_LOST) {
    rank_.check(names_victim(outcome), fmt::format("the error names rank {}", victims_.front()), outcome.text());
  }
}

void Deaths::await_loss() {
  rank_.step("waiting until the harness has noticed the death");
  const Nanoseconds deadline = now() + rank_.hang_limit(10 * kSecond);
  for (const int32_t victim : victims_) {
    for (;;) {
      const uint32_t seen = rank_.world().states_version();
      if (rank_.world().state(victim) != RankState::kAlive) break;
      if (now() > deadline) rank_.harness_error("a rank that ended itself is not seen to have ended");
      rank_.world().wait_for_state_change(seen);
    }
  }
}

void Deaths::carry_on(std::unique_ptr<Agent> agent) {
  await_loss();
  rank_.step("submitting to a group that has lost a rank and was aborted");
  agent->abort(BP_PEER_LOST, victims_.front(), fmt::format("rank {} is lost: its process ended", victims_.front()));
  char byte = 0;
  const Outcome after = agent->irecv(companion(), 77, &byte, 1).finish(rank_.scaled(kSecond));
  rank_.check(after.status == BP_PEER_LOST, "after the abort operations fail with its status, BP_PEER_LOST",
              after.text());
  if (after.status == BP_PEER_LOST) {
    rank_.check(names_victim(after), fmt::format("all survivors name the same rank, {}", victims_.front()),
                after.text());
  }
  close_quickly(rank_, std::move(agent));
  regroup();
}

// With BP_BACKEND_ONE_WORLD a process has no group besides the world and its subgroups.
void Deaths::regroup() {
  if (rank_.has_flag(BP_BACKEND_ONE_WORLD)) return barrier("closed");
  rank_.step("opening a new group of the survivors");
  barrier("closed");
  Plan plan;
  plan.space = "after";
  plan.rank = static_cast<int32_t>(std::find(survivors_.begin(), survivors_.end(), rank_.id()) - survivors_.begin());
  plan.world_size = static_cast<int32_t>(survivors_.size());
  plan.global_ranks = survivors_;
  std::unique_ptr<Agent> agent = rank_.open(plan);
  rank_.step("using the new group of the survivors");
  exchange(rank_, *agent, 5, 3000);
  barrier("regrouped");
  agent->close();
}

void close_quickly(Rank& rank, std::unique_ptr<Agent> agent) {
  rank.step("in destroy");
  const Stopwatch watch;
  agent->close();
  rank.check_time(watch.took(), rank.scaled(kDestroyLimit), "destroy returns");
}

void end_somehow(Rank& rank, Agent& agent, Pending& pending, Nanoseconds timeout, const std::string& what) {
  Outcome outcome = pending.wait(timeout);
  if (outcome.status == BP_AGAIN) {
    agent.abort(BP_TIMEOUT, -1, "the harness gives up");
    outcome = pending.wait(rank.scaled(kSecond / 2));
  }
  rank.require(outcome.status != BP_AGAIN, what + " is over within half a second of abort", "it is still in flight");
  pending.release();
}

}  // namespace backplane::conformance
