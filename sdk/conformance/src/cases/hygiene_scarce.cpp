// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "death_after.hpp"
#include "groups.hpp"
#include "limits.hpp"
#include "proc.hpp"
#include "process_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr int kMost = 64;  // descriptors or threads for a group of one rank

// The descriptor limit that leaves `free` descriptors.
int limit_for(int free) {
  const std::map<int, Descriptor> open = descriptors();
  int limit = 0;
  for (; free > 0 || open.count(limit) > 0; ++limit) {
    if (open.count(limit) == 0) --free;
  }
  return limit;
}

// Resources that the first group creates for the process (a sanitizer's thread, a library's pool) are no leak.
void warm_up(Rank& rank) {
  Plan plan;
  plan.space = fmt::format("warm/{}", rank.id());
  plan.rank = 0;
  plan.world_size = 1;
  auto agent = rank.open(plan);
  exchange(rank, *agent, 1, 100);
  agent->close();
  std::thread([] {}).join();  // a sanitizer's runtime starts a thread with the first one of the process
}

// An init that fails for lack of a resource reports it and leaks nothing; one that succeeds yields a working group.
bool starts(Rank& rank, int allowed, const std::string& of_what, const std::function<void()>& lift,
            const Footprint& before) {
  Plan plan;
  plan.space = fmt::format("{}/{}/{}", of_what, rank.id(), allowed);
  plan.rank = 0;
  plan.world_size = 1;
  plan.timeout = 5 * kSecond;
  Outcome outcome;
  auto agent = rank.try_open(plan, outcome);
  rank.step(fmt::format("starting a group with {} {} left", allowed, of_what));
  const bool started = agent != nullptr;
  if (started) {
    exchange(rank, *agent, 1, 100);
    agent->close();
  } else {
    rank.check(outcome.status == BP_RESOURCE,
               fmt::format("an init that finds only {} {} works or fails with BP_RESOURCE", allowed, of_what),
               outcome.text());
    rank.check(outcome.error.text[0] != '\0', "the error names the exhausted resource", "it has no text");
  }
  lift();
  const std::string left = left_behind(before, rank.scaled(2 * kSecond));
  rank.check(left.empty(), fmt::format("nothing is left of an init with {} {}", allowed, of_what), left);
  return started;
}

void few_descriptors(Rank& rank) {
  rank.barrier();
  if (rank.id() != 0) return;
  warm_up(rank);
  const Footprint before = Footprint::take();
  int worked = 0;
  for (int allowed = 0; allowed <= kMost && worked < 2; ++allowed) {
    auto limit = std::make_unique<DescriptorLimit>(limit_for(allowed));
    worked += starts(
                  rank, allowed, "descriptors", [&limit] { limit.reset(); }, before)
                  ? 1
                  : 0;
  }
  rank.check(worked > 0, fmt::format("a group of one rank is content with {} descriptors", kMost), "init still fails");
}

// The same for rank 0 of a group of all ranks. The others must not wait for it beyond their timeout. `make_scarce`
// leaves `allowed` units of the resource and returns a function that lifts the limit.
using MakeScarce = std::function<std::function<void()>(int allowed)>;

void start_together(Rank& rank, const std::string& of_what, const MakeScarce& make_scarce) {
  warm_up(rank);
  const Footprint before = Footprint::take();
  bool worked = false;
  for (int allowed = 0; allowed <= kMost && !worked; allowed = allowed < 4 ? allowed + 1 : allowed * 2) {
    rank.barrier();
    Plan plan;
    plan.space = fmt::format("together/{}/{}", of_what, allowed);
    plan.timeout = 400 * kMillisecond;
    const std::function<void()> lift = rank.id() == 0 ? make_scarce(allowed) : [] {};
    Outcome outcome;
    auto agent = rank.try_open(plan, outcome);
    lift();
    rank.step(fmt::format("starting a group of which rank 0 has {} {} left", allowed, of_what));
    rank.publish(fmt::format("{}/{}", plan.space, rank.id()), std::to_string(outcome.status));
    worked = true;
    for (int32_t other = 0; other < rank.size(); ++other) {
      worked = rank.await_value(fmt::format("{}/{}", plan.space, other)) == std::to_string(BP_OK) && worked;
    }
    if (worked) exchange(rank, *agent, 1, 1000);
    // A rank that cannot accept a connection may not notice: it may report a timeout or a lost peer instead.
    const bool sensible = agent != nullptr || outcome.status == BP_RESOURCE || outcome.status == BP_TIMEOUT ||
                          outcome.status == BP_PEER_LOST;
    rank.check(
        sensible,
        fmt::format("with {} {} on rank 0 init works or fails with BP_RESOURCE, or as it does when a rank is missing",
                    allowed, of_what),
        outcome.text());
    rank.barrier();
    if (agent != nullptr) agent->close();
    rank.barrier();
    const std::string left = left_behind(before, rank.scaled(2 * kSecond));
    rank.check(left.empty(), fmt::format("nothing is left of an init with {} {} on rank 0", allowed, of_what), left);
  }
  rank.check(worked, fmt::format("a group is content with {} {} on rank 0", kMost, of_what), "init still fails");
}

void few_descriptors_together(Rank& rank) {
  start_together(rank, "descriptors", [](int allowed) -> std::function<void()> {
    auto limit = std::make_shared<DescriptorLimit>(limit_for(allowed));
    return [limit]() mutable { limit.reset(); };
  });
}

void few_threads_together(Rank& rank) {
  ThreadLimit* limit = nullptr;
  std::string why_not;
  if (rank.id() == 0) {
    limit = ThreadLimit::install(why_not);
    rank.publish("why not", why_not);
  }
  if (!rank.await_value("why not").empty()) rank.skip(rank.await_value("why not"));
  start_together(rank, "threads", [limit](int allowed) -> std::function<void()> {
    limit->allow(allowed);
    return [limit] { limit->allow(-1); };
  });
}

// A rank runs out of descriptors while the group works: no rank crashes or hangs.
void no_descriptor_in_traffic(Rank& rank) {
  auto agent = rank.open();
  rank.barrier();
  std::unique_ptr<DescriptorLimit> limit;
  if (rank.id() == 0) limit = std::make_unique<DescriptorLimit>(limit_for(0));
  rank.step("sending and receiving when rank 0 has no descriptor left");
  std::vector<char> in(1000);
  const std::vector<char> out(1000);
  Pending receiving = agent->irecv(rank.previous(), 1, in.data(), in.size());
  Pending sending = agent->isend(rank.next(), 1, out.data(), out.size());
  end_somehow(rank, *agent, receiving, rank.scaled(2 * kSecond), "a recv without descriptors");
  end_somehow(rank, *agent, sending, rank.scaled(2 * kSecond), "a send without descriptors");
  rank.barrier();
  limit.reset();
  agent->abort(BP_RESOURCE, 0, "the harness aborts");
  close_quickly(rank, std::move(agent));
  rank.step("starting a group when there are descriptors again");
  exchange_in_new_group(rank);
}

void few_threads(Rank& rank) {
  rank.barrier();
  if (rank.id() != 0) return;
  warm_up(rank);
  std::string why_not;
  ThreadLimit* const limit = ThreadLimit::install(why_not);
  if (limit == nullptr) rank.skip(why_not);
  const Footprint before = Footprint::take();
  int worked = 0;
  for (int allowed = 0; allowed <= kMost && worked < 2; ++allowed) {
    limit->allow(allowed);
    worked += starts(
                  rank, allowed, "threads", [limit] { limit->allow(-1); }, before)
                  ? 1
                  : 0;
  }
  rank.check(worked > 0, fmt::format("a group of one rank is content with {} threads", kMost), "init still fails");
}

void no_shared_memory(Rank& rank) {
  warm_up(rank);
  const Footprint before = Footprint::take();
  std::string why_not;
  if (!deny_shared_memory(why_not)) rank.skip(why_not);
  rank.barrier();
  Plan plan;
  plan.timeout = 5 * kSecond;
  Outcome outcome;
  auto agent = rank.try_open(plan, outcome);
  rank.step("starting a group when no shared memory can be had");
  rank.publish(fmt::format("status/{}", rank.id()), std::to_string(outcome.status));
  std::set<std::string> statuses;
  for (int32_t other = 0; other < rank.size(); ++other)
    statuses.insert(rank.await_value(fmt::format("status/{}", other)));
  if (statuses == std::set<std::string>{std::to_string(BP_OK)}) {
    exchange(rank, *agent, 1, 1'000'000);
  } else {
    rank.check(statuses.count(std::to_string(BP_RESOURCE)) > 0,
               "an init that finds no shared memory works or fails with BP_RESOURCE on some rank", outcome.text());
  }
  rank.barrier();
  if (agent != nullptr) agent->close();
  rank.barrier();
  const std::string left = left_behind(before, rank.scaled(2 * kSecond));
  rank.check(left.empty(), "nothing is left of a group that found no shared memory", left);
}

}  // namespace

std::vector<Case> hygiene_scarce_cases() {
  constexpr uint32_t kWithout = BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT;
  const Needs one = {.without = BP_BACKEND_ONE_WORLD};
  const Needs together = {.without = kWithout, .ranks = 2, .processes = true};
  const Execution slow = {.deadline = 40 * kSecond};
  return {
      Case("emfile-together", "a rank with too few descriptors reports it; the others keep their deadlines",
           few_descriptors_together, together, slow),
      Case("thread-limit-together", "a rank with too few threads reports it; the others keep their deadlines",
           few_threads_together, together, slow),
      Case("emfile", "init with too few descriptors fails with BP_RESOURCE and leaks nothing", few_descriptors, one,
           slow),
      Case("emfile-in-traffic", "a rank without descriptors neither crashes nor hangs the others",
           no_descriptor_in_traffic, {.ranks = 2, .processes = true}, slow),
      Case("enospc", "init without shared memory works or fails with BP_RESOURCE", no_shared_memory,
           {.without = kWithout}, slow),
      Case("thread-limit", "init with too few threads fails with BP_RESOURCE and leaks nothing", few_threads, one,
           slow),
  };
}

}  // namespace backplane::conformance
