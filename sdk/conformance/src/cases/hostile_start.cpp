// SPDX-License-Identifier: Apache-2.0
//
// Processes outside the job connect and send while the ranks start. One rank comes late, so that the others wait
// meanwhile.
#include <poll.h>

#include <set>
#include <string>

#include "groups.hpp"
#include "hostile_attack.hpp"
#include "process_traffic.hpp"

namespace backplane::conformance {

namespace {

constexpr Nanoseconds kPortsWithin = kSecond;
constexpr int kTurnsBeforeLate = 30;  // each visits every port once

bool all_met(const Rank& rank) {
  for (int32_t other = 0; other < rank.size(); ++other) {
    if (!rank.world().look(fmt::format("harness/start/met/{}", other))) return false;
  }
  return true;
}

// One connection of a kind that changes with the turn.
void visit(Attack& attack, const Listener& target, int turn) {
  AttackConnection connection(target);
  switch (turn % 6) {
    case 0:
      return;
    case 1:
      return connection.reset();
    case 2:
      connection.send("x");
      return;
    case 3:
      connection.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
      break;
    case 4:
      connection.send(attack.noise(7));
      break;
    default:
      connection.send(attack.noise(3000));
  }
  connection.await_reaction(2);
}

// The late rank starts after some turns, or if there is no port within a second: some backends listen only when all
// ranks have come.
void visit_until_all_met(Rank& rank) {
  rank.step("visiting the ports of starting ranks");
  const Nanoseconds begin = now();
  bool has_found = false;
  bool is_late_called = false;
  for (int turn = 0; now() - begin < rank.hang_limit(15 * kSecond) && !(is_late_called && all_met(rank));) {
    const std::set<Listener> found = listeners();
    if (found.empty()) {
      poll(nullptr, 0, 2);
    } else {
      has_found = true;
      Attack attack(rank, {found.begin(), found.end()}, nullptr);
      for (const Listener& target : attack.targets()) visit(attack, target, turn);
      ++turn;
    }
    if (is_late_called || (turn < kTurnsBeforeLate && now() - begin < rank.scaled(kPortsWithin))) continue;
    rank.publish("start/visited", "");
    is_late_called = true;
  }
  if (!has_found) rank.skip("this backend accepts no connections while it starts");
}

void start_among_outsiders(Rank& rank) {
  if (rank.is_extra()) return visit_until_all_met(rank);
  if (rank.id() == rank.size() - 1) rank.await_value("start/visited");
  auto agent = rank.open();
  rank.publish(fmt::format("start/met/{}", rank.id()), "");
  rank.step("exchanging messages after a start among outsiders");
  exchange(rank, *agent, 1, 1000);
  exchange(rank, *agent, 1, 300'000);
  rank.barrier();
  agent->close();
}

}  // namespace

std::vector<Case> hostile_start_cases() {
  return {Case("at-start", "connections from outside the job do not disturb the start", start_among_outsiders,
               {.without = BP_BACKEND_BLOCKING_INIT, .ranks = 2, .processes = true},
               {.deadline = 40 * kSecond, .extra_processes = 1, .own_network = true})};
}

}  // namespace backplane::conformance
