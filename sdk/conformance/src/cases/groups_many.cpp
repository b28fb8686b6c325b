// SPDX-License-Identifier: Apache-2.0
//
// Many groups: one after the other, at once, and from several threads.
#include <algorithm>

#include "async_support.hpp"

namespace backplane::conformance {
namespace {

void make_and_use(Rank& rank, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    const auto group = rank.open(in_space(say("group ", i)));
    ring(rank, *group, say("in group ", i, " of ", count), 1, static_cast<uint64_t>(i), 100);
    rank.step(say("in destroy of group ", i, " of ", count));
  }
}

void made_100(Rank& rank) { make_and_use(rank, 100); }
void made_1000(Rank& rank) { make_and_use(rank, 1000); }

void alive_at_once(Rank& rank) {
  constexpr int32_t kCount = 16;
  std::vector<std::unique_ptr<Agent>> groups;
  for (int32_t i = 0; i < kCount; ++i) groups.push_back(rank.open(in_space(say("group ", i))));
  for (uint64_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < groups.size(); ++i) {
      ring(rank, *groups[i], say("in group ", i, " of ", kCount, " that exist at once"), round, i, 100);
    }
  }
  // In a rank-specific order that needs no synchronisation.
  std::shuffle(groups.begin(), groups.end(), rank.random());
  rank.step("destroying groups in an order that differs between ranks");
  groups.clear();
}

// Runs the ring repeatedly in a thread. Returns an empty string if all results were right.
std::string drive(Agent& agent, uint64_t salt, Nanoseconds patience) {
  constexpr uint64_t kSize = 2000;
  const int32_t next = (agent.rank() + 1) % agent.size();
  const int32_t previous = (agent.rank() + agent.size() - 1) % agent.size();
  for (uint64_t i = 0; i < 50; ++i) {
    const auto key = [salt, i](int32_t sender) { return salt * 10'000 + i * 100 + static_cast<uint64_t>(sender); };
    const std::vector<uint8_t> sent = bytes_of(key(agent.rank()), kSize);
    std::vector<uint8_t> got(kSize);
    Pending recv = agent.irecv(previous, 1, got.data(), kSize);
    Pending send = agent.isend(next, 1, sent.data(), kSize);
    const Outcome received = recv.finish(patience);
    const Outcome done = send.finish(received.ok() ? patience : 0);
    if (!received.ok()) return say("recv ", i, ": ", received.text());
    if (!done.ok()) return say("send ", i, ": ", done.text());
    if (const int64_t wrong = first_wrong(got, key(previous)); wrong >= 0) {
      return say("message ", i, " has a wrong byte at index ", wrong);
    }
  }
  return "";
}

// The world, the world backwards, and pairs of neighbours: each rank is in all three, with a thread for each.
void overlapping(Rank& rank) {
  std::vector<std::unique_ptr<Agent>> groups;
  groups.push_back(rank.open(in_space("world")));
  std::vector<int32_t> backwards(static_cast<size_t>(rank.size()));
  for (int32_t i = 0; i < rank.size(); ++i) backwards[static_cast<size_t>(i)] = rank.size() - 1 - i;
  groups.push_back(rank.open(in_space("backwards", backwards, rank.size() - 1 - rank.id())));
  const int32_t partner = rank.id() ^ 1;
  const int32_t first = std::min(rank.id(), partner);
  if (partner < rank.size()) {
    groups.push_back(rank.open(in_space(say("pair ", first), {first, first + 1}, rank.id() - first)));
  }
  std::vector<std::string> wrong(groups.size());
  rank.step("using overlapping groups from a thread each");
  {
    std::vector<std::unique_ptr<Aside>> threads;
    for (size_t i = 0; i < groups.size(); ++i) {
      threads.push_back(
          std::make_unique<Aside>([&, i] { wrong[i] = drive(*groups[i], i + 1, rank.scaled(3 * kSecond)); }));
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    rank.require(wrong[i].empty(), say("messages in group ", i, " beside overlapping groups in other threads"),
                 wrong[i]);
  }
}

}  // namespace

std::vector<Case> group_many_cases() {
  return {
      {.group = "groups",
       .name = "made-100",
       .about = "100 groups can be made, used and destroyed one after the other",
       .body = made_100,
       .deadline = 40 * kSecond},
      {.group = "groups",
       .name = "made-1000",
       .about = "1000 groups can be made, used and destroyed one after the other",
       .level = Level::kFull,
       .body = made_1000,
       .deadline = 300 * kSecond},
      {.group = "groups",
       .name = "alive-at-once",
       .about = "16 groups of the same ranks work side by side and end in any order",
       .needs = {.without = BP_BACKEND_ONE_WORLD},
       .body = alive_at_once},
      {.group = "groups",
       .name = "overlapping",
       .about = "overlapping groups may be used from different threads at once",
       .needs = {.without = BP_BACKEND_ONE_WORLD},
       .body = overlapping},
  };
}

}  // namespace backplane::conformance
