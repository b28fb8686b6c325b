// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include "groups.hpp"
#include "proc.hpp"
#include "process_traffic.hpp"

extern "C" {
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's name
__attribute__((weak)) int __lsan_do_recoverable_leak_check();
}

namespace backplane::conformance {
namespace {

constexpr int kWarmUp = 10;           // rounds in which a library may allocate permanent state
constexpr uint64_t kSlack = 8 << 20;  // bytes that an allocator may keep
constexpr uint64_t kPerRound = 4096;  // bytes of resident memory that a round may cost

using Round = std::function<void(int number)>;

// Repeats a round `rounds` times or until `most` has passed, and compares the process with its state after the warm-up.
void repeat(Rank& rank, const std::string& what, int rounds, Nanoseconds most, const Round& round) {
  rank.step(what + ", again and again");
  int number = 0;
  while (number < kWarmUp) round(number++);
  const Footprint before = Footprint::take();
  const uint64_t memory = resident_bytes();
  const Nanoseconds deadline = now() + most;
  while (number < rounds && (most < 0 || now() < deadline)) round(number++);
  const std::string left = left_behind(before, rank.scaled(2 * kSecond));
  rank.check(left.empty(), fmt::format("nothing is left of {} rounds of {}", number - kWarmUp, what), left);
  const uint64_t after = resident_bytes();
  const uint64_t limit = kSlack + kPerRound * static_cast<uint64_t>(number);
  rank.check(
      has_sanitizer() || after < memory + limit,
      fmt::format("resident memory grows by less than {} KiB in {} rounds of {}", limit >> 10, number - kWarmUp, what),
      fmt::format("it grew by {} KiB", (after - std::min(memory, after)) >> 10));
}

std::string space_of(const Rank& rank, int number) { return fmt::format("round/{}/{}", rank.id(), number); }

Plan alone(const Rank& rank, int number) {
  Plan plan;
  plan.space = space_of(rank, number);
  plan.rank = 0;
  plan.world_size = 1;
  return plan;
}

// One rank is enough, because groups of one do not involve the others.
void init_destroy(Rank& rank, int rounds, Nanoseconds most) {
  rank.barrier();
  if (rank.id() != 0) return;
  repeat(rank, "init and destroy", rounds, most, [&rank](int number) {
    auto agent = rank.open(alone(rank, number));
    if (number % 10 == 0) exchange(rank, *agent, 1, 100);
    agent->close();
  });
}

void init_destroy_world(Rank& rank, int rounds) {
  repeat(rank, "init, messages and destroy in the whole world", rounds, -1, [&rank](int number) {
    Plan plan;
    plan.space = fmt::format("world/{}", number);
    auto agent = rank.open(plan);
    exchange(rank, *agent, 1, 5000);
    rank.barrier();
    agent->close();
  });
  rank.barrier();
}

// An init that is aborted at once. Calls init directly, since an Agent's host is not accessible before init returns.
int32_t init_while_aborting(Rank& rank, int number) {
  Host host(rank.world(), space_of(rank, number), [](uint32_t, const char*) {});
  host.request_abort();
  const bp_backend& backend = rank.backend();
  const OptionValues values(backend, rank.run().options);
  bp_options* options = nullptr;
  bp_error error;
  bp_error_init(&error);
  if (backend.construct_options != nullptr) {
    const bp_options_request request = {sizeof request, values.count(), values.data(), kSecond, "env://"};
    const int32_t status = backend.construct_options(&backend, &request, &options, &error);
    if (status != BP_OK) return status;
  }
  const int32_t ranks[] = {0, 1};
  bp_init init = {};
  init.struct_size = sizeof init;
  init.rank = number % 2;
  init.world_size = 2;
  init.device = -1;
  init.name = "aborting";
  init.host = host.table();
  init.options = options;
  init.values = values.data();
  init.value_count = values.count();
  init.kind = BP_KIND_PROCESS_GROUP;
  init.timeout_ns = rank.scaled(5 * kSecond);
  init.global_ranks = ranks;
  bp_agent agent = {};
  agent.struct_size = sizeof agent;
  const int32_t status = backend.init(&backend, &init, &agent, &error);
  if (status == BP_OK) static_cast<const bp_process_group_api*>(agent.api)->destroy(agent.self);
  if (options != nullptr && backend.destroy_options != nullptr) backend.destroy_options(&backend, options);
  return status;
}

// The other rank never joins, or the host requests an abort at once.
void failed_init(Rank& rank, int rounds, Nanoseconds most) {
  rank.barrier();
  if (rank.id() != 0) return;
  repeat(rank, "init that fails", rounds, most, [&rank](int number) {
    if (number % 4 >= 2) {
      init_while_aborting(rank, number);
      return;
    }
    Plan plan = alone(rank, number);
    plan.rank = number % 2;
    plan.world_size = 2;
    plan.timeout = 2 * kMillisecond;
    Outcome outcome;
    auto agent = rank.try_open(plan, outcome);
    if (agent != nullptr) agent->close();
  });
}

void abort_rounds(Rank& rank, int rounds, Nanoseconds most) {
  rank.barrier();
  if (rank.id() != 0) return;
  repeat(rank, "init, abort and destroy", rounds, most, [&rank](int number) {
    auto agent = rank.open(alone(rank, number));
    char byte = 0;
    Pending pending = agent->irecv(0, 1, &byte, 1);
    agent->abort(BP_TIMEOUT, -1, "the harness aborts");
    const Outcome outcome = pending.finish(rank.scaled(kSecond));
    rank.require(outcome.status == BP_TIMEOUT, "an operation in flight ends with abort's status", outcome.text());
    agent->close();
  });
}

void abort_world(Rank& rank, int rounds) {
  repeat(rank, "init, abort and destroy in the whole world", rounds, -1, [&rank](int number) {
    Plan plan;
    plan.space = fmt::format("abort/{}", number);
    auto agent = rank.open(plan);
    std::vector<char> in(100'000);
    const std::vector<char> out(100'000);
    Pending receiving = agent->irecv(rank.previous(), 1, in.data(), in.size());
    Pending sending = agent->isend(rank.next(), 2, out.data(), out.size());  // no rank receives it
    rank.barrier();
    agent->abort(BP_TIMEOUT, -1, "the harness aborts");
    const Outcome outcome = receiving.finish(rank.scaled(kSecond));
    rank.require(!outcome.ok() && outcome.status != BP_AGAIN, "abort ends a recv in flight", outcome.text());
    sending.finish(rank.scaled(kSecond));
    agent->close();
    rank.barrier();
  });
  rank.barrier();
}

void leaks(Rank& rank) {
  if (__lsan_do_recoverable_leak_check == nullptr) rank.skip("this build has no LeakSanitizer");
  for (int number = 0; number < 5; ++number) {
    Plan plan;
    plan.space = fmt::format("leak/{}", number);
    auto agent = rank.open(plan);
    exchange(rank, *agent, 1, 100'000);
    rank.barrier();
    if (number % 2 == 1) agent->abort(BP_TIMEOUT, -1, "the harness aborts");
    agent->close();
    failed_init(rank, 20, -1);
  }
  rank.step("looking for unreachable memory");
  rank.check(__lsan_do_recoverable_leak_check() == 0, "no memory is leaked", "LeakSanitizer found some");
}

}  // namespace

std::vector<Case> hygiene_rounds_cases() {
  const Needs one = {.without = BP_BACKEND_ONE_WORLD};
  const Needs abortable_init = {.without = BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT};
  const Execution slow = {.deadline = 30 * kSecond};
  const Execution full = {.level = Level::kFull, .deadline = 180 * kSecond};
  return {
      Case(
          "init-destroy", "groups of one rank leak no descriptor, thread, process, file or memory",
          [](Rank& rank) { init_destroy(rank, 1000, 2 * kSecond); }, one, slow),
      Case(
          "init-destroy-world", "groups of all ranks leak nothing", [](Rank& rank) { init_destroy_world(rank, 40); },
          {}, slow),
      Case(
          "failed-init", "a failed init leaks nothing", [](Rank& rank) { failed_init(rank, 1000, 2 * kSecond); },
          abortable_init, slow),
      Case(
          "abort", "an aborted group leaks nothing", [](Rank& rank) { abort_rounds(rank, 200, 2 * kSecond); }, one,
          slow),
      Case(
          "abort-world", "a group that all ranks abort leaks nothing", [](Rank& rank) { abort_world(rank, 30); }, {},
          slow),
      Case("leaks", "LeakSanitizer finds nothing", leaks, {}, slow),
      Case(
          "init-destroy-1000", "a thousand groups leak nothing", [](Rank& rank) { init_destroy(rank, 1000, -1); }, one,
          full),
      Case(
          "failed-init-1000", "a thousand failed inits leak nothing", [](Rank& rank) { failed_init(rank, 1000, -1); },
          abortable_init, full),
      Case(
          "abort-1000", "a thousand aborts leak nothing", [](Rank& rank) { abort_rounds(rank, 1000, -1); }, one, full),
  };
}

}  // namespace backplane::conformance
