// SPDX-License-Identifier: Apache-2.0
//
// The loss of a rank of a subgroup, whose ranks have other numbers there than in the world.
#include <algorithm>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// Rank 0 of the world, the last one of `group`, destroys the group while the others wait for it.
void lose_last(Rank& rank, std::unique_ptr<Agent> group, const std::string& what) {
  const int32_t lost = group->size() - 1;
  ring(rank, *group, what + " before a rank leaves it", 1);
  if (group->rank() == lost) {
    rank.barrier();
    close_in_time(rank, *group, what);
    rank.barrier();
    return;
  }
  uint8_t byte = 0;
  Pending recv = group->irecv(lost, 2, &byte, 1);
  rank.barrier();
  rank.step(fmt::format("waiting for rank {} {}, which destroys its group", lost, what));
  Outcome outcome = recv.wait(rank.scaled(2 * kSecond));
  rank.barrier();
  if (outcome.status == BP_AGAIN) {  // this backend does not detect it
    std::vector<Pending> rest;
    rest.push_back(std::move(recv));
    return abandon(rank, *group, rest);
  }
  rank.check(outcome.status == BP_PEER_LOST, "a recv from a rank that destroyed its group fails with BP_PEER_LOST",
             outcome.text());
  rank.check(outcome.error.peer_rank == lost,
             fmt::format("bp_error.peer_rank is {}, the number {} of rank 0 of the world", lost, what),
             fmt::format("{}: {}", outcome.error.peer_rank, outcome.text()));
  recv.release();
}

// In reverse order: no rank has its number of the world unless it stands in the middle.
void lost_rank(Rank& rank) {
  std::vector<int32_t> members;
  for (int32_t member = rank.size() - 1; member >= 0; --member) members.push_back(member);
  const Plan plan = in_space("reversed", members, rank.size() - 1 - rank.id());
  if (!rank.has_flag(BP_BACKEND_ONE_WORLD)) lose_last(rank, rank.open(plan), "in a renumbered group");
  rank.barrier();
  const auto world = rank.open();
  Plan part = plan;
  part.space = "part";
  part.parent = world.get();
  part.parent_ranks = members;
  lose_last(rank, rank.open(part), "in a renumbered part of a group");
  rank.barrier();
}

}  // namespace

std::vector<Case> group_lost_cases() {
  return {Case("lost-rank", "BP_PEER_LOST names the lost rank by its number in the group", lost_rank, {.ranks = 2})};
}

}  // namespace backplane::conformance
