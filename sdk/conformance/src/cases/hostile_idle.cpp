// SPDX-License-Identifier: Apache-2.0
//
// Connections that never send, made over the network while the ranks start. One rank comes only after them.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <set>
#include <vector>

#include "groups.hpp"
#include "hostile_attack.hpp"
#include "limits.hpp"
#include "process_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr int kIdleConnections = 300;  // to each port
constexpr int kSpareDescriptors = 150;
constexpr Nanoseconds kPortsAppear = 3 * kSecond;  // then the backend has none

// Ports that other hosts can reach.
std::set<Listener> network_ports() {
  std::set<Listener> found = listeners();
  std::erase_if(found, [](const Listener& each) { return each.family == AF_UNIX; });
  return found;
}

// The process outside the job. Holds its connections until all ranks have met.
void hold_idle_connections(Rank& rank) {
  rlimit descriptors = {};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  rank.step("waiting for the ports of starting ranks");
  const Nanoseconds deadline = now() + rank.scaled(kPortsAppear);
  std::set<Listener> found;
  while ((found = network_ports()).size() + 1 < static_cast<size_t>(rank.size()) && now() < deadline)
    poll(nullptr, 0, 5);
  if (found.empty()) {
    rank.publish("idle/held", "");
    rank.skip("this backend accepts no network connections while it starts");
  }
  rank.step(fmt::format("holding idle connections to {} ports", found.size()));
  std::vector<AttackConnection> held;
  const Nanoseconds enough = now() + rank.scaled(kSecond);
  for (int i = 0; i < kIdleConnections && now() < enough; ++i) {
    for (const Listener& target : found) held.emplace_back(target);
  }
  rank.publish("idle/held", "");
  for (int32_t other = 0; other < rank.size(); ++other) rank.await_value(fmt::format("idle/met/{}", other));
}

void late_rank(Rank& rank) {
  if (rank.is_extra()) return hold_idle_connections(rank);
  const DescriptorLimit limit(descriptors().rbegin()->first + 1 + kSpareDescriptors);
  if (rank.id() == rank.size() - 1) rank.await_value("idle/held");
  auto agent = rank.open();
  rank.step("exchanging messages among idle connections");
  exchange(rank, *agent, 1, 1000);
  exchange(rank, *agent, 1, 300'000);
  rank.barrier();
  rank.publish(fmt::format("idle/met/{}", rank.id()), "");
  agent->close();
}

}  // namespace

std::vector<Case> hostile_idle_cases() {
  return {Case("late-rank", "idle network connections, more than a rank has descriptors, do not keep a late rank out",
               late_rank, {.without = BP_BACKEND_BLOCKING_INIT, .ranks = 2, .processes = true},
               {.deadline = 60 * kSecond, .extra_processes = 1, .own_network = true})};
}

}  // namespace backplane::conformance
