// SPDX-License-Identifier: Apache-2.0
//
// Leaked resources, and output that a backend prints.
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "death_after.hpp"
#include "endings.hpp"
#include "finalize.hpp"
#include "groups.hpp"
#include "output_capture.hpp"
#include "proc.hpp"

namespace backplane::conformance {
namespace {

// A group's lifetime with failures: messages, a timeout, an abort, an init that fails.
void live(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 50'000);
  char byte = 0;
  bp_op op = recv_op(rank.previous(), 2, &byte, 1);
  op.timeout_ns = 20 * kMillisecond;
  op.flags = BP_OP_SYNC;
  agent->run(op);
  rank.barrier();
  agent->abort(BP_TIMEOUT, -1, "the harness aborts");
  agent->close();
  rank.barrier();
  if (rank.has_flag(BP_BACKEND_ONE_WORLD) || rank.has_flag(BP_BACKEND_BLOCKING_INIT)) return;
  Plan plan;
  plan.space = fmt::format("missing/{}", rank.id());
  plan.rank = 0;
  plan.world_size = 2;
  plan.timeout = 20 * kMillisecond;
  Outcome outcome;
  auto missing = rank.try_open(plan, outcome);
}

void quiet(Rank& rank) {
  const bool captures = rank.id() == 0 || !rank.has_flag(BP_BACKEND_ONE_PROCESS);
  rank.barrier();
  std::optional<OutputCapture> capture;
  if (captures) capture.emplace();
  if (capture && !*capture) rank.harness_error("no memory for the output of a backend");
  rank.barrier();
  const bp_backend& backend = rank.backend();
  if (backend.probe != nullptr) {
    Host host(rank.world(), fmt::format("probe/{}", rank.id()), [](uint32_t, const char*) {});
    bp_error error;
    bp_error_init(&error);
    backend.probe(&backend, host.table(), &error);
  }
  live(rank);
  rank.barrier();
  if (!capture) return;
  const std::string output = capture->text().substr(0, 400);
  capture.reset();
  rank.check(output.empty(), "nothing is printed: messages go to the host's log", output);
}

struct Public {
  std::set<std::string> shared = shared_memory();
  std::set<std::string> sockets = unix_names();
};

// New entries in shared places such as /dev/shm; waits up to two seconds for them to disappear.
void expect_nothing_new(Rank& rank, const Public& before) {
  rank.step("looking for resources that killed ranks have left");
  const Nanoseconds deadline = now() + rank.scaled(2 * kSecond);
  std::string left;
  do {
    const Public after;
    left.clear();
    for (const std::string& name : after.shared) {
      if (before.shared.count(name) == 0) left += " /dev/shm/" + name;
    }
    for (const std::string& name : after.sockets) {
      if (before.sockets.count(name) == 0) left += " UNIX socket " + name;
    }
  } while (!left.empty() && now() < deadline);
  rank.check(left.empty(), "nothing that a killed rank made is left", "left:" + left);
}

void one_killed(Rank& rank) {
  const int32_t victim = rank.size() - 1;
  const Public before;
  rank.barrier();
  Deaths deaths(rank, {victim});
  auto agent = rank.open({}, true);
  exchange(rank, *agent, 1, 1'000'000);
  rank.barrier();
  if (rank.id() == victim) die(rank, SIGKILL);
  deaths.await_loss();
  agent->abort(BP_PEER_LOST, victim, "a rank is lost");
  close_quickly(rank, std::move(agent));
  deaths.barrier("closed");
  if (rank.id() == deaths.survivors().front()) expect_nothing_new(rank, before);
}

// All ranks are killed, so none can clean up.
void all_killed(Rank& rank) {
  if (rank.is_extra()) {
    const Public before;
    rank.publish("looked", "");
    for (int32_t other = 0; other < rank.size(); ++other) {
      for (;;) {
        const uint32_t seen = rank.world().states_version();
        if (rank.world().state(other) != RankState::kAlive) break;
        rank.world().wait_for_state_change(seen);
      }
    }
    expect_nothing_new(rank, before);
    return;
  }
  rank.await_value("looked");
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1'000'000);
  rank.barrier();
  die(rank, SIGKILL);
}

// Calls finalize as the core does at the end of a process. The supervisor observes the end itself.
void finalized(Rank& rank) {
  if (!BP_HAS(&rank.backend(), finalize) || rank.backend().finalize == nullptr)
    rank.skip("the backend has no finalize");
  const bool first = rank.id() == 0 || !rank.has_flag(BP_BACKEND_ONE_PROCESS);
  const Footprint before = Footprint::take();
  rank.barrier();
  auto agent = rank.open();
  exchange(rank, *agent, 1, 50'000);
  rank.barrier();
  agent->close();
  rank.barrier();
  if (first) {
    rank.step("in finalize");
    const Stopwatch watch;
    rank.require(finalize(rank.backend()), "finalize after all agents are destroyed", "one is left");
    rank.check_time(watch.took(), rank.scaled(5 * kSecond), "finalize returns");
    const std::string left = grown_since(before, rank.scaled(kSecond));
    rank.check(left.empty(), "nothing is left after finalize", left);
    rank.step("after finalize");
  }
  rank.barrier();
}

}  // namespace

std::vector<Case> hygiene_cases() {
  return {
      Case("quiet", "nothing is printed on stdout or stderr", quiet),
      Case("finalize", "after finalize the library below holds no resource", finalized),
      Case("sigkill-leaves-nothing", "a killed rank leaves nothing in /dev/shm and no socket's name", one_killed,
           {.ranks = 2, .processes = true}, {.own_network = true}),
      Case("all-killed-leave-nothing",
           "a job of which all ranks are killed leaves nothing in /dev/shm and no socket's name", all_killed,
           {.processes = true}, {.extra_processes = 1, .own_network = true}),
  };
}

}  // namespace backplane::conformance
