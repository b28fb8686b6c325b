// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "bounded_memory.hpp"
#include "groups.hpp"
#include "order.hpp"

namespace backplane::conformance {
namespace {

void back_to_back(Rank& rank) {
  Collectives group(rank);
  const std::vector<uint32_t> ops = collectives_or_none(group);
  for (uint64_t number = 0; number < 1000; ++number) {
    if (number % 100 == 0)
      rank.step(fmt::format("in operations {} and following of 1000, one after the other", number));
    Step step(group, ops, number, 1 + number % 40);
    step.submit();
    step.finish();
  }
}

// After `warm_up` operations, `count` more may cost no more than `most` bytes of resident memory for each rank.
void run_in_bounded_memory(Rank& rank, uint64_t warm_up, uint64_t count, uint64_t most) {
  Collectives group(rank);
  const std::vector<uint32_t> ops = collectives_or_none(group);
  uint64_t before = 0;
  for (uint64_t number = 0; number < warm_up + count; ++number) {
    if (number % 1000 == 0) rank.step(fmt::format("in operations {} and following of {}", number, warm_up + count));
    if (number == warm_up) {
      rank.barrier();
      before = resident_bytes();
    }
    Step step(group, ops, number, 1 + number % 40);
    step.submit();
    step.finish();
  }
  check_growth(rank, before, most, fmt::format("{} operations", count));
}

void memory_of_operations(Rank& rank) { run_in_bounded_memory(rank, 500, 2'500, kMiB); }
void many_operations(Rank& rank) { run_in_bounded_memory(rank, 20'000, 100'000, 4 * kMiB); }

// Operations of two groups. Some ranks start them in one order, the others in the reverse order.
void two_groups(Rank& rank) {
  if (rank.run().on_device) rank.skip("operations of both groups would wait for each other in the device's one stream");
  Plan first_plan;
  first_plan.space = "first";
  Plan second_plan;
  second_plan.space = "second";
  Collectives first(rank, first_plan);
  Collectives second(rank, second_plan);
  const std::vector<uint32_t> ops = collectives_or_none(first);
  for (uint64_t number = 0; number < 60; ++number) {
    rank.step(fmt::format("in operation {} of two groups at the same time", number));
    Step in_first(first, ops, number);
    Step in_second(second, ops, number + 7);
    const bool swap = rank.id() % 2 == 1;
    (swap ? in_second : in_first).submit();
    (swap ? in_first : in_second).submit();
    // Both groups are called, since a group may progress only inside calls.
    const Nanoseconds end = now() + first.enough();
    for (bool over = false; !over;) {
      const bool first_over = in_first.poll(kMillisecond);
      over = in_second.poll(kMillisecond) && first_over;
      rank.require(over || now() < end, "both groups' operations end in time", "one is still in flight");
    }
    in_first.finish();
    in_second.finish();
  }
}

// Messages with any tag stay in flight during collectives and are received before, between or after them.
void p2p_beside_collectives(Rank& rank) {
  Collectives group(rank);
  const std::vector<uint32_t> ops = group.native_ops();
  Agent& agent = group.agent();
  for (uint64_t number = 0; number < 40; ++number) {
    rank.step(fmt::format("sending messages while collective {} runs", number));
    const uint64_t tag = number / 2 % 4;
    const uint64_t size = number % 3 == 0 ? 150'000 : 40;
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), tag, number));
    Step step(group, ops, number);
    const bool early = number % 2 == 0;
    Pending receiving;
    if (early) receiving = agent.irecv(rank.previous(), tag, input.data(), size);
    Pending sending = agent.isend(rank.next(), tag, output.data(), size);
    step.submit();
    const bool late = number % 4 == 1;
    if (!early && !late) receiving = agent.irecv(rank.previous(), tag, input.data(), size);
    step.finish();
    if (late) receiving = agent.irecv(rank.previous(), tag, input.data(), size);
    const Outcome received = receiving.finish(group.enough());
    const Outcome sent = sending.finish(group.enough());
    rank.require_ok(received, "a recv beside a collective");
    rank.require_ok(sent, "a send beside a collective");
    const int64_t wrong = first_wrong_byte(input.data(), size, message_name(rank.previous(), rank.id(), tag, number));
    rank.require(wrong < 0, "the message that was sent beside a collective",
                 fmt::format("the first wrong byte is at index {}", wrong));
  }
}

// Ranks submit one by one, each only after the previous one. The first rank is several operations ahead.
void skewed_arrival(Rank& rank) {
  Collectives group(rank);
  const std::vector<uint32_t> ops = collectives_or_none(group);
  constexpr uint64_t kAhead = 6;
  for (uint64_t round = 0; round < 8; ++round) {
    const auto ranks = static_cast<uint64_t>(rank.size());
    const uint64_t place = (static_cast<uint64_t>(rank.id()) + round) % ranks;
    rank.step(fmt::format("submitting {} operations as number {} of the ranks, round {}", kAhead, place, round));
    if (place > 0) rank.await_value(fmt::format("skewed/{}/{}", round, place - 1));
    std::deque<Step> steps;
    for (uint64_t i = 0; i < kAhead; ++i) {
      steps.emplace_back(group, ops, round * kAhead + i, round % 2 == 0 ? 50 : 9000);
      steps.back().submit();
    }
    rank.publish(fmt::format("skewed/{}/{}", round, place), "submitted");
    for (Step& step : steps) step.finish();
  }
}

}  // namespace

std::vector<Case> order_sequence_cases() {
  return {
      Case("back-to-back", "1000 consecutive operations do not mix", back_to_back, {}, {.deadline = 30 * kSecond}),
      Case("memory-per-operation", "memory does not grow with the number of operations: 2,500", memory_of_operations,
           {}, {.deadline = 30 * kSecond}),
      Case("hundred-thousand", "100,000 consecutive operations are right, and memory does not grow", many_operations,
           {}, {.level = Level::kThorough, .deadline = 500 * kSecond}),
      Case("two-groups", "operations of two groups do not mix, in whatever order they begin", two_groups,
           {.without = BP_BACKEND_ONE_WORLD}),
      Case("p2p-beside-collectives", "messages and collectives in flight at the same time do not mix",
           p2p_beside_collectives),
      Case("skewed-arrival", "ranks may come late, and others be several operations ahead", skewed_arrival),
  };
}

}  // namespace backplane::conformance
