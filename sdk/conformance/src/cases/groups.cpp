// SPDX-License-Identifier: Apache-2.0
//
// Subgroups. For a plugin a subgroup is an init like any other, with its own store prefix, world size and global ranks.
// The computation of "split" and the handling of non-members belong to the core.
#include <algorithm>
#include <numeric>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {

std::vector<Case> group_many_cases();  // groups_many.cpp
std::vector<Case> group_lost_cases();  // groups_lost.cpp

namespace {

// The group of some ranks of the world, in this order. Null: this rank is not a member.
std::unique_ptr<Agent> open_of(Rank& rank, const std::string& space, const std::vector<int32_t>& members) {
  const auto place = std::find(members.begin(), members.end(), rank.id());
  if (place == members.end()) return nullptr;
  return rank.open(in_space(space, members, static_cast<int32_t>(place - members.begin())));
}

// first, first + step, ... below the world's size.
std::vector<int32_t> every(const Rank& rank, int32_t first, int32_t step) {
  std::vector<int32_t> members;
  for (int32_t r = first; r < rank.size(); r += step) members.push_back(r);
  return members;
}

std::vector<int32_t> all_ranks(const Rank& rank) { return every(rank, 0, 1); }

// Runs a native collective, if the backend has one.
void collective(Rank& rank, Agent& agent, const std::string& when) {
  int32_t one = 1;
  bp_op op;
  if (!make_collective(rank, op, &one)) return;
  rank.step("in a native collective " + when);
  op.timeout_ns = rank.hang_limit(kEndLimit);
  rank.require_ok(agent.run(op), "a native collective " + when);
  rank.require(op.kind == BP_BARRIER || one == agent.size(), fmt::format("the sum {} over the group", agent.size()),
               fmt::format("the sum {}", one));
}

void split_halves(Rank& rank) {
  const auto world = rank.open();
  const int32_t colour = rank.id() % 2;
  const auto half = open_of(rank, fmt::format("colour {}", colour), every(rank, colour, 2));
  for (uint64_t i = 0; i < 5; ++i) {
    ring(rank, *half, "in a half of the world", i, 10 + static_cast<uint64_t>(colour));
    ring(rank, *world, "in the whole world beside its halves", i, 20);
  }
  collective(rank, *half, "in a half of the world");
}

void undefined_colour(Rank& rank) {
  std::vector<int32_t> members = all_ranks(rank);
  members.pop_back();
  const auto group = open_of(rank, "all but the last", members);
  if (group) {
    ring(rank, *group, "in a group without the last rank", 1, 5);
    collective(rank, *group, "in a group without the last rank");
  }
  rank.barrier();
  const auto world = rank.open();
  ring(rank, *world, "in the world, with the rank that had no group", 1, 6);
}

// Ranks in reverse order: all ranks in arguments and results are the group's own.
void key_order(Rank& rank) {
  std::vector<int32_t> members = all_ranks(rank);
  std::reverse(members.begin(), members.end());
  const auto group = open_of(rank, "reversed", members);
  ring(rank, *group, "in a group whose ranks are renumbered", 1, 7);
  rank.step("sending by numbers of a group whose ranks are renumbered");
  std::vector<Pending> sends;
  std::vector<std::vector<uint8_t>> sent;
  for (int32_t to = 0; to < group->size(); ++to) {
    const int32_t world_rank = members[static_cast<size_t>(to)];
    sent.push_back(bytes_of(static_cast<uint64_t>(rank.id()) * 100 + static_cast<uint64_t>(world_rank), 500));
    if (to != group->rank()) sends.push_back(group->isend(to, 2, sent.back().data(), 500));
  }
  for (int32_t from = 0; from < group->size(); ++from) {
    if (from == group->rank()) continue;
    const int32_t world_rank = members[static_cast<size_t>(from)];
    std::vector<uint8_t> got(500);
    bp_result result = make_result();
    rank.require_ok(group->irecv(from, 2, got.data(), got.size(), &result).finish(rank.hang_limit(kEndLimit)),
                    fmt::format("a recv from the group's rank {}", from));
    rank.require(result.source == from, fmt::format("source {}, which is rank {} of the world", from, world_rank),
                 fmt::format("source {}", result.source));
    require_bytes(rank, got, static_cast<uint64_t>(world_rank) * 100 + static_cast<uint64_t>(rank.id()),
                  fmt::format("the group's rank {}, which is rank {} of the world", from, world_rank));
  }
  for (Pending& send : sends) rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send");
  collective(rank, *group, "in a group whose ranks are renumbered");
}

void singleton(Rank& rank) {
  const auto world = rank.open();
  const auto alone = open_of(rank, fmt::format("only rank {}", rank.id()), {rank.id()});
  ring(rank, *alone, "in a group of one", 1, 30 + static_cast<uint64_t>(rank.id()));
  collective(rank, *alone, "in a group of one");
  ring(rank, *world, "beside groups of one", 1, 8);
}

// Groups of the first 1, 2, 3 ... ranks.
void all_sizes(Rank& rank) {
  for (int32_t size = 1; size <= rank.size(); ++size) {
    std::vector<int32_t> members(static_cast<size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    const auto group = open_of(rank, fmt::format("the first {}", size), members);
    if (group) ring(rank, *group, fmt::format("in a group of {}", size), 1, static_cast<uint64_t>(size));
  }
}

// Nested subgroups, each with different rank numbers, all alive.
void nested(Rank& rank) {
  std::vector<int32_t> members = all_ranks(rank);
  std::vector<std::unique_ptr<Agent>> groups;
  for (int32_t level = 0;; ++level) {
    auto group = open_of(rank, fmt::format("level {}", level), members);
    if (!group) break;
    ring(rank, *group, fmt::format("in a group of level {}", level), 1, static_cast<uint64_t>(level));
    groups.push_back(std::move(group));
    if (members.size() == 1) break;
    members.erase(members.begin());
    std::rotate(members.begin(), members.begin() + 1, members.end());
  }
  rank.barrier();
  for (size_t i = 0; i < groups.size(); ++i) {
    ring(rank, *groups[i], fmt::format("in a group of level {} beside those inside", i), 2,
         40 + static_cast<uint64_t>(i));
  }
}

void parent_destroyed_first(Rank& rank) {
  auto world = rank.open();
  const int32_t colour = rank.id() % 2;
  const auto half = open_of(rank, fmt::format("colour {}", colour), every(rank, colour, 2));
  const auto copy = open_of(rank, "copy", all_ranks(rank));
  ring(rank, *world, "in a group that is to go first", 1, 9);
  close_in_time(rank, *world, "of the group that was made first");
  world.reset();
  for (uint64_t i = 0; i < 5; ++i) {
    ring(rank, *half, "in a half after the whole was destroyed", i, 50 + static_cast<uint64_t>(colour));
    ring(rank, *copy, "in a copy of the group that was destroyed", i, 60);
  }
  collective(rank, *half, "after the whole was destroyed");
}

// The same ranks and tags in two groups: a message of the first group can be received only there.
void same_tags(Rank& rank) {
  const auto first = rank.open(in_space("first"));
  const auto second = rank.open(in_space("second"));
  constexpr uint64_t kSize = 700;
  const auto key = [](uint64_t group, int32_t sender) { return group * 1000 + static_cast<uint64_t>(sender); };
  for (uint64_t i = 0; i < 10; ++i) {
    rank.step("sending with the same tag in two groups");
    const std::vector<uint8_t> sent1 = bytes_of(key(1, rank.id()) + i, kSize);
    const std::vector<uint8_t> sent2 = bytes_of(key(2, rank.id()) + i, kSize);
    std::vector<uint8_t> got1(kSize);
    std::vector<uint8_t> got2(kSize);
    Pending send1 = first->isend(rank.next(), 3, sent1.data(), kSize);
    Pending send2 = second->isend(rank.next(), 3, sent2.data(), kSize);
    rank.require_ok(second->irecv(rank.previous(), 3, got2.data(), kSize).finish(rank.hang_limit(kEndLimit)),
                    "a recv in the second group");
    rank.require_ok(first->irecv(rank.previous(), 3, got1.data(), kSize).finish(rank.hang_limit(kEndLimit)),
                    "a recv in the first group");
    require_bytes(rank, got1, key(1, rank.previous()) + i, "the first group's message");
    require_bytes(rank, got2, key(2, rank.previous()) + i, "the second group's message");
    rank.require_ok(send1.finish(rank.hang_limit(kEndLimit)), "the send in the first group");
    rank.require_ok(send2.finish(rank.hang_limit(kEndLimit)), "the send in the second group");
  }
}

}  // namespace

std::vector<Case> groups_cases() {
  const Needs one = {.without = BP_BACKEND_ONE_WORLD};
  const Needs two = {.without = BP_BACKEND_ONE_WORLD, .ranks = 2};
  return {
      Case("split-colour", "the world and its two halves work side by side", split_halves, two),
      Case("undefined-colour", "a group works without the ranks that are in no group", undefined_colour, two),
      Case("key-order", "a group uses its own rank numbers, in any order", key_order, two),
      Case("singleton", "a group may have one rank", singleton, one),
      Case("all-sizes", "a group may have any size up to the world's", all_sizes, one),
      Case("nested", "groups of groups of groups work side by side", nested, two),
      Case("parent-destroyed-first", "a group survives the group that it was made from", parent_destroyed_first, one),
      Case("same-tags", "messages of two groups never mix", same_tags, one),
  };
}

}  // namespace backplane::conformance
