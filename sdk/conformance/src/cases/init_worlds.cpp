// SPDX-License-Identifier: Apache-2.0
//
// Group `init`: groups of every size that start as expected.
#include <time.h>

#include "groups.hpp"
#include "init_groups.hpp"

namespace backplane::conformance::init {
namespace {

// An agent, or null if the backend declares that it does not serve this world size.
std::unique_ptr<Agent> open_if_served(Rank& rank) {
  Outcome outcome;
  std::unique_ptr<Agent> agent = rank.try_open({}, outcome);
  if (outcome.status == BP_UNSUPPORTED) rank.skip(fmt::format("a world of {}: {}", rank.size(), outcome.text()));
  rank.require_ok(outcome, "init");
  return agent;
}

void world_1(Rank& rank) {
  const std::unique_ptr<Agent> agent = open_if_served(rank);
  rank.step("sending to itself");
  for (uint32_t round = 0; round < 10; ++round) ring(rank, *agent, 100 * round);
  rank.step("in destroy");
  agent->close();
}

void each_world(Rank& rank) {
  const std::unique_ptr<Agent> agent = open_if_served(rank);
  rank.step("exchanging with every rank");
  for (uint32_t round = 0; round < 3; ++round) exchange_with_all(rank, *agent, 1000 * round);
  rank.barrier();
  rank.step("in destroy");
  agent->close();
}

// One rank joins after the others have waited, or sent, for a while.
void late_joiner(Rank& rank) {
  const int32_t late = rank.size() - 1;
  if (rank.id() == late) {
    for (int32_t peer = 0; peer < late; ++peer) rank.await_value(fmt::format("begins/{}", peer));
    const timespec pause = {0, 400'000'000};  // the delay that the case is about
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  } else {
    rank.publish(fmt::format("begins/{}", rank.id()), "");
  }
  const std::unique_ptr<Agent> agent = rank.open();
  rank.step("exchanging with every rank");
  exchange_with_all(rank, *agent, 500);
  rank.barrier();
}

// A rank sends and leaves; its messages still arrive.
void gone_before_others(Rank& rank) {
  constexpr uint32_t kMessages = 20;
  const std::unique_ptr<Agent> agent = rank.open();
  rank.barrier();
  if (rank.id() == 0) {
    rank.step("sending, to end at once");
    std::vector<uint32_t> numbers(kMessages);
    std::vector<Pending> sends;
    for (uint32_t i = 0; i < kMessages; ++i) {
      numbers[i] = 7000 + i;
      for (int32_t peer = 1; peer < rank.size(); ++peer) {
        sends.push_back(agent->isend(peer, 5, &numbers[i], sizeof(uint32_t)));
      }
    }
    for (Pending& send : sends) rank.require_ok(send.finish(rank.hang_limit(15 * kSecond)), "a send");
    rank.step("in destroy, at once after the sends are done");
    agent->close();
    rank.publish("gone", "");
    return;
  }
  // Sends may wait for their recvs; rank 0 then leaves only after the other ranks receive.
  rank.step("waiting for rank 0 to leave");
  std::string word;
  rank.world().get("harness/gone", word, kSecond / 2, [] { return false; });
  rank.step("receiving from rank 0, which has left or is leaving");
  for (uint32_t i = 0; i < kMessages; ++i) {
    uint32_t number = 0;
    rank.require_ok(agent->recv(0, 5, &number, sizeof number), fmt::format("the recv of message {} of rank 0", i));
    rank.require(number == 7000 + i, fmt::format("the number {}", 7000 + i), std::to_string(number));
  }
}

}  // namespace

std::vector<Case> world_cases() {
  return {
      Case("world-1", "a group of one starts, sends to itself and ends", world_1, {}, {.worlds = {1}}),
      Case("each-world", "groups of 2 to 8 start, every rank reaches every other, and end", each_world, {.ranks = 2},
           {.worlds = {2, 3, 4, 5, 6, 7, 8}}),
      Case("many-ranks", "groups of 17 and 33 start, every rank reaches every other, and end", each_world, {.ranks = 2},
           {.level = Level::kThorough, .worlds = {17, 33}, .deadline = 120 * kSecond}),
      Case("late-joiner", "init waits for a rank that comes late", late_joiner, {.ranks = 2}),
      Case("gone-before-others", "messages sent before destroy arrive", gone_before_others, {.ranks = 2}),
  };
}

}  // namespace backplane::conformance::init
