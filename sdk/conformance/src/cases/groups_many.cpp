// SPDX-License-Identifier: Apache-2.0
//
// Many groups: one after the other, at the same time, and from several threads.
#include <algorithm>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

void make_and_use(Rank& rank, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    const auto group = rank.open(in_space(fmt::format("group {}", i)));
    ring(rank, *group, fmt::format("in group {} of {}", i, count), 1, static_cast<uint64_t>(i), 100);
    rank.step(fmt::format("in destroy of group {} of {}", i, count));
  }
}

void made_100(Rank& rank) { make_and_use(rank, 100); }
void made_1000(Rank& rank) { make_and_use(rank, 1000); }

void alive_at_once(Rank& rank) {
  constexpr int32_t kCount = 16;
  std::vector<std::unique_ptr<Agent>> groups;
  for (int32_t i = 0; i < kCount; ++i) groups.push_back(rank.open(in_space(fmt::format("group {}", i))));
  for (uint64_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < groups.size(); ++i) {
      ring(rank, *groups[i], fmt::format("in group {} of {} that exist at once", i, kCount), round, i, 100);
    }
  }
  // In a rank-specific order that needs no synchronisation.
  std::shuffle(groups.begin(), groups.end(), rank.random());
  rank.step("destroying groups in an order that differs between ranks");
  groups.clear();
}

// Runs the ring repeatedly in a thread. Returns an empty string if all results were right.
std::string drive(Agent& agent, uint64_t salt, Nanoseconds timeout_scale) {
  constexpr uint64_t kSize = 2000;
  const int32_t next = (agent.rank() + 1) % agent.size();
  const int32_t previous = (agent.rank() + agent.size() - 1) % agent.size();
  for (uint64_t i = 0; i < 50; ++i) {
    const auto key = [salt, i](int32_t sender) { return salt * 10'000 + i * 100 + static_cast<uint64_t>(sender); };
    const std::vector<uint8_t> sent = bytes_of(key(agent.rank()), kSize);
    std::vector<uint8_t> got(kSize);
    Pending recv = agent.irecv(previous, 1, got.data(), kSize);
    Pending send = agent.isend(next, 1, sent.data(), kSize);
    const Outcome received = recv.finish(timeout_scale);
    const Outcome done = send.finish(received.ok() ? timeout_scale : 0);
    if (!received.ok()) return fmt::format("recv {}: {}", i, received.text());
    if (!done.ok()) return fmt::format("send {}: {}", i, done.text());
    if (const int64_t wrong = first_wrong(got, key(previous)); wrong >= 0) {
      return fmt::format("message {} has a wrong byte at index {}", i, wrong);
    }
  }
  return "";
}

// The world, the world in reverse order, and pairs of neighbours. Each rank is in all three, with a thread for each.
void overlapping(Rank& rank) {
  std::vector<std::unique_ptr<Agent>> groups;
  groups.push_back(rank.open(in_space("world")));
  std::vector<int32_t> backwards(static_cast<size_t>(rank.size()));
  for (int32_t i = 0; i < rank.size(); ++i) backwards[static_cast<size_t>(i)] = rank.size() - 1 - i;
  groups.push_back(rank.open(in_space("backwards", backwards, rank.size() - 1 - rank.id())));
  const int32_t partner = rank.id() ^ 1;
  const int32_t first = std::min(rank.id(), partner);
  if (partner < rank.size()) {
    groups.push_back(rank.open(in_space(fmt::format("pair {}", first), {first, first + 1}, rank.id() - first)));
  }
  std::vector<std::string> wrong(groups.size());
  rank.step("using overlapping groups from a thread each");
  {
    std::vector<std::unique_ptr<TestThread>> threads;
    for (size_t i = 0; i < groups.size(); ++i) {
      threads.push_back(
          std::make_unique<TestThread>([&, i] { wrong[i] = drive(*groups[i], i + 1, rank.scaled(3 * kSecond)); }));
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    rank.require(wrong[i].empty(), fmt::format("messages in group {} beside overlapping groups in other threads", i),
                 wrong[i]);
  }
}

}  // namespace

std::vector<Case> group_many_cases() {
  return {
      Case("made-100", "100 groups can be made, used and destroyed one after the other", made_100, {},
           {.deadline = 40 * kSecond}),
      Case("made-1000", "1000 groups can be made, used and destroyed one after the other", made_1000, {},
           {.level = Level::kFull, .deadline = 300 * kSecond}),
      Case("alive-at-once", "16 groups of the same ranks work side by side and end in any order", alive_at_once,
           {.without = BP_BACKEND_ONE_WORLD}),
      Case("overlapping", "overlapping groups may be used from different threads at once", overlapping,
           {.without = BP_BACKEND_ONE_WORLD}),
  };
}

}  // namespace backplane::conformance
