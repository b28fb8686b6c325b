// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include "async_support.hpp"
#include "death_after.hpp"
#include "endings.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// No rank aborts, so the survivors can report only the death.
void report(Rank& rank) {
  const int32_t victim = rank.size() - 1;
  Deaths deaths(rank, {victim});
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (deaths.doomed()) {
    deaths.await_ready();
    die(rank, SIGKILL);
  }
  rank.require(agent->host().reports().empty(), "no report_failure before a rank dies", "one");
  deaths.ready();
  deaths.await_loss();
  rank.step("reading the reports about a killed rank");
  const auto reported = [&agent] { return !agent->host().reports().empty(); };
  poll_until(rank.scaled(kSecond / 2), reported);  // no report is allowed as well
  for (const bp_error& each : agent->host().reports()) {
    Outcome outcome;
    outcome.error = each;
    outcome.status = each.status;
    rank.check(each.status == BP_PEER_LOST && (each.peer_rank == victim || each.peer_rank == -1),
               fmt::format("report_failure says BP_PEER_LOST and names rank {} or none", victim), outcome.text());
    if (outcome.status == BP_PEER_LOST) check_report(rank, outcome, "report_failure");
  }
  deaths.barrier("looked");
  close_quickly(rank, std::move(agent));
}

}  // namespace

std::vector<Case> death_report_cases() {
  return {Case("report", "reports to the host about a killed rank name no other rank", report,
               {.ranks = 2, .processes = true})};
}

}  // namespace backplane::conformance
