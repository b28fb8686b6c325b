// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <numeric>

#include "../proc.hpp"
#include "groups.hpp"
#include "order.hpp"

namespace backplane::conformance {
namespace {

std::vector<size_t> shuffled(size_t count, std::mt19937_64& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// Each rank waits for its operations in a different order.
void waits_out_of_order(Rank& rank) {
  Collectives group(rank);
  const std::vector<uint32_t> ops = collectives_or_none(group);
  for (uint64_t round = 0; round < 5; ++round) {
    rank.step(fmt::format("waiting for 30 operations in a random order, round {}", round));
    std::deque<Step> steps;
    for (uint64_t i = 0; i < 30; ++i) {
      steps.emplace_back(group, ops, round * 30 + i);
      steps.back().submit();
    }
    for (const size_t which : shuffled(steps.size(), rank.random())) steps[which].finish();
  }
}

void messages_out_of_order(Rank& rank) {
  VerifiedAgent verified(rank);
  constexpr size_t kMessages = 200;
  rank.step("waiting for 200 sends and recvs in a random order");
  std::vector<uint64_t> outputs(kMessages);
  std::vector<uint64_t> inputs(kMessages);
  std::vector<Pending> pending;
  for (size_t i = 0; i < kMessages; ++i) {
    outputs[i] = message_name(rank.id(), rank.next(), 0, i);
    pending.push_back(verified.send(rank.next(), 3, &outputs[i], 8));
    pending.push_back(verified.recv(rank.previous(), 3, &inputs[i], 8));
  }
  for (const size_t which : shuffled(pending.size(), rank.random())) {
    verified.finish(pending[which], fmt::format("{}{}", which % 2 == 0 ? "send " : "recv ", which / 2));
  }
  for (size_t i = 0; i < kMessages; ++i) {
    rank.require(inputs[i] == message_name(rank.previous(), rank.id(), 0, i),
                 fmt::format("message {} in recv {}", i, i), "another message");
  }
}

// The limit of this process, divided by the ranks in it.
struct Holdings {
  uint64_t memory = resident_bytes();
  size_t open = descriptors().size();
  size_t running = threads().size();
};

void expect_bounded(Rank& rank, const Holdings& before, uint64_t operations, uint64_t bytes_each) {
  const Holdings after;
  const uint64_t ranks = rank.has_flag(BP_BACKEND_ONE_PROCESS) ? static_cast<uint64_t>(rank.size()) : 1;
  const uint64_t bound = ranks * operations * bytes_each + 24 * kMiB;
  rank.require(after.open <= before.open + 64, "no descriptor for each operation",
               fmt::format("{} more for {} operations", after.open - before.open, operations));
  rank.require(after.running <= before.running + 64, "no thread for each operation",
               fmt::format("{} more for {} operations", after.running - before.running, operations));
  if (has_sanitizer() || before.memory == 0) return;
  rank.require(after.memory <= before.memory + bound,
               fmt::format("at most {} MiB for {} operations in flight", bound / kMiB, ranks * operations),
               fmt::format("{} MiB", (after.memory - before.memory) / kMiB));
}

// 10,000 operations in flight on each rank: 5000 recvs that wait, then their sends.
void outstanding(Rank& rank) {
  VerifiedAgent verified(rank);
  constexpr size_t kMessages = 5000;
  std::vector<uint64_t> outputs(kMessages);
  std::vector<uint64_t> inputs(kMessages);
  std::vector<Pending> recvs;
  std::vector<Pending> sends;
  recvs.reserve(kMessages);
  sends.reserve(kMessages);
  verified.round(9);  // connections are made by now
  rank.barrier();
  const Holdings before;
  rank.step("submitting 5000 recvs");
  for (size_t i = 0; i < kMessages; ++i) recvs.push_back(verified.recv(rank.previous(), 4, &inputs[i], 8));
  rank.barrier();
  rank.step("submitting 5000 sends");
  for (size_t i = 0; i < kMessages; ++i) {
    outputs[i] = message_name(rank.id(), rank.next(), 4, i);
    sends.push_back(verified.send(rank.next(), 4, &outputs[i], 8));
  }
  expect_bounded(rank, before, 2 * kMessages, 4096);
  rank.step("waiting for 5000 sends and recvs");
  verified.finish_all(recvs, "recv");
  verified.finish_all(sends, "send");
  for (size_t i = 0; i < kMessages; ++i) {
    rank.require(inputs[i] == message_name(rank.previous(), rank.id(), 4, i),
                 fmt::format("message {} in recv {}", i, i), "another message");
  }
}

void collectives_outstanding(Rank& rank) {
  Collectives group(rank);
  const std::vector<uint32_t> ops = group.native_ops();
  const Holdings before;
  rank.step("submitting 300 collectives without waiting");
  std::deque<Step> steps;
  for (uint64_t i = 0; i < 300; ++i) {
    steps.emplace_back(group, ops, i, 20);
    steps.back().submit();
  }
  expect_bounded(rank, before, 300, 16 * 1024);
  rank.step("waiting for 300 collectives");
  for (Step& step : steps) step.finish();
}

// A tag uses no memory once its messages have been received.
void many_tags(Rank& rank) {
  VerifiedAgent verified(rank);
  constexpr size_t kTags = 3000;
  constexpr uint64_t kRounds = 3;
  std::vector<uint64_t> outputs(kTags);
  std::vector<uint64_t> inputs(kTags);
  verified.round(1);
  const Holdings before;
  for (uint64_t round = 0; round < kRounds; ++round) {
    rank.step(fmt::format("using {} tags that were not used before, round {}", kTags, round));
    const auto tag = [round](size_t i) { return 1000 + (round * kTags + i) * 7919; };
    std::vector<Pending> sends;
    std::vector<Pending> recvs;
    for (size_t i = 0; i < kTags; ++i) {
      outputs[i] = message_name(rank.id(), rank.next(), tag(i), 0);
      sends.push_back(verified.send(rank.next(), tag(i), &outputs[i], 8));
    }
    for (const size_t i : shuffled(kTags, rank.random())) {
      recvs.push_back(verified.recv(rank.previous(), tag(i), &inputs[i], 8));
    }
    verified.finish_all(recvs, "recv");
    verified.finish_all(sends, "send");
    for (size_t i = 0; i < kTags; ++i) {
      rank.require(inputs[i] == message_name(rank.previous(), rank.id(), tag(i), 0),
                   fmt::format("the message of tag {}", tag(i)), "another message");
    }
  }
  expect_bounded(rank, before, kRounds * kTags, 2048);
}

}  // namespace

std::vector<Case> order_outstanding_cases() {
  return {
      Case("waits-out-of-order", "operations may be waited for in any order, different on each rank",
           waits_out_of_order),
      Case("messages-out-of-order", "sends and recvs may be waited for in any order without changing the matching",
           messages_out_of_order),
      Case("outstanding", "10,000 messages may be in flight, at a bounded cost for each", outstanding),
      Case("collectives-outstanding", "hundreds of collectives may be in flight, at a bounded cost for each",
           collectives_outstanding),
      Case("many-tags", "thousands of tags may be used, and cost nothing afterwards", many_tags,
           {.flags = BP_BACKEND_TAGS}),
  };
}

}  // namespace backplane::conformance
