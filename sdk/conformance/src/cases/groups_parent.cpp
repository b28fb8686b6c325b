// SPDX-License-Identifier: Apache-2.0
//
// Subgroups that are made from an agent of a larger group (bp_init.parent).
#include <algorithm>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// The group of these members of `parent`, in this order, by their ranks in it. Null: this rank is not a member.
std::unique_ptr<Agent> open_from(Rank& rank, const Agent& parent, const std::string& space,
                                 const std::vector<int32_t>& members) {
  const auto place = std::find(members.begin(), members.end(), parent.rank());
  if (place == members.end()) return nullptr;
  Plan plan = in_space(space, members, static_cast<int32_t>(place - members.begin()));
  plan.parent = &parent;
  plan.parent_ranks = members;
  return rank.open(plan);
}

std::vector<int32_t> every(int32_t size, int32_t first, int32_t step) {
  std::vector<int32_t> members;
  for (int32_t r = first; r < size; r += step) members.push_back(r);
  return members;
}

// Halves, and all but the last rank in reverse order, while messages of the parent are in flight.
void parent(Rank& rank) {
  const auto world = rank.open();
  std::vector<uint8_t> got(kLarge);
  const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()) + 1, kLarge);
  Pending recv = world->irecv(rank.previous(), 1, got.data(), kLarge);
  Pending send;
  if (rank.id() % 2 == 0) send = world->isend(rank.next(), 1, sent.data(), kLarge);
  const int32_t colour = rank.id() % 2;
  rank.step("starting a half of a group that has operations in flight");
  const auto half = open_from(rank, *world, fmt::format("colour {}", colour), every(rank.size(), colour, 2));
  std::vector<int32_t> backwards = every(rank.size() - 1, 0, 1);
  std::reverse(backwards.begin(), backwards.end());
  const auto most = open_from(rank, *world, "all but the last", backwards);
  for (uint64_t i = 0; i < 3; ++i) {
    ring(rank, *half, "in a half of its parent", i, 10 + static_cast<uint64_t>(colour));
    if (most) ring(rank, *most, "in a part of its parent, in other ranks", i, 20);
    ring(rank, *world, "in a parent beside its parts", 2 + i, 30);
  }
  if (rank.id() % 2 != 0) send = world->isend(rank.next(), 1, sent.data(), kLarge);
  rank.step("finishing operations in flight since before the subgroups were created");
  rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)), "a recv that was in flight");
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send that was in flight");
  require_bytes(rank, got, static_cast<uint64_t>(rank.previous()) + 1, "a message that was in flight");
}

// Members of the parent that are not in the subgroup do not call the backend during its init.
void parent_members_only(Rank& rank) {
  const auto world = rank.open();
  rank.barrier();
  const std::vector<int32_t> members = every(rank.size() - 1, 0, 1);
  if (const auto group = open_from(rank, *world, "members", members)) {
    ring(rank, *group, "in a part while the others of its parent do nothing", 1, 5);
    const auto inner = open_from(rank, *group, "part of the part", {0});
    if (inner) ring(rank, *inner, "in a part of a part", 1, 6);
  }
  rank.barrier();
  ring(rank, *world, "in a parent whose part has ended", 1, 7);
}

void parent_ends(Rank& rank) {
  for (const bool parent_first : {true, false}) {
    auto world = rank.open(in_space(fmt::format("world {}", parent_first)));
    std::vector<std::unique_ptr<Agent>> parts;
    for (uint64_t i = 0; i < 3; ++i) {
      parts.push_back(open_from(rank, *world, fmt::format("part {}{}", parent_first, i), every(rank.size(), 0, 1)));
    }
    ring(rank, *parts[1], "in a copy of its parent", 1, 1);
    if (parent_first) {
      close_in_time(rank, *world, "of a parent whose parts live on");
      rank.barrier();
      for (uint64_t i = 0; i < 3; ++i) ring(rank, *parts[i], "after the parent was destroyed", 2, i);
    } else {
      for (const auto& part : parts) close_in_time(rank, *part, "of a part whose parent lives on");
      rank.barrier();
      ring(rank, *world, "in a parent whose parts were destroyed", 2, 9);
      const auto again = open_from(rank, *world, "again", every(rank.size(), 0, 1));
      ring(rank, *again, "in a part that was made after others had ended", 3, 9);
    }
    rank.barrier();
  }
}

}  // namespace

std::vector<Case> group_parent_cases() {
  const Needs two = {.ranks = 2};
  return {
      Case("parent", "subgroups with their own rank numbers are made from a group with operations in flight", parent,
           two),
      Case("parent-members-only", "a subgroup is made by its members only, also from a subgroup", parent_members_only,
           two),
      Case("parent-ends", "a parent and its subgroups end in any order", parent_ends),
  };
}

}  // namespace backplane::conformance
