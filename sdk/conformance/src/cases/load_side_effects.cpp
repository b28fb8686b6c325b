// SPDX-License-Identifier: Apache-2.0
//
// Group `load`: side effects of loading, probing and starting on the process.
#include <dlfcn.h>

#include <cstring>

#include "../proc.hpp"
#include "groups.hpp"
#include "init_groups.hpp"
#include "load_open.hpp"
#include "output_capture.hpp"

namespace backplane::conformance::load {
namespace {

void quiet_constructor(Rank& rank) {
  // Loads the libraries that the harness's own checks need.
  process_state();
  const OutputCapture capture;
  const ProcessState before = process_state();
  open_plugin(rank);
  compare_process_state(rank, before, "loading the plugin");
  const std::string output = capture.text();
  rank.check(output.empty(), "loading the plugin prints nothing", output.substr(0, 1000));
}

void probe_harmless(Rank& rank) {
  const bp_backend& backend = rank.backend();
  if (backend.probe == nullptr) rank.skip("the backend has no probe, which means that it is always viable");
  const Host host(rank.world(), "probe", [](uint32_t, const char*) {});
  // Libraries that are loaded or started once per process may stay. The second round must have no side effects.
  for (int round = 0; round < 2; ++round) {
    const OutputCapture capture;
    const ProcessState before = process_state();
    rank.step(fmt::format("in probe, round {}", round));
    Outcome outcome;
    outcome.status = backend.probe(&backend, host.table(), &outcome.error);
    rank.check(outcome.ok() || outcome.status == BP_UNSUPPORTED, "probe answers BP_OK or BP_UNSUPPORTED",
               outcome.text());
    rank.check(outcome.ok() || outcome.error.text[0] != '\0', "a reason why the backend is not viable", "no text");
    compare_process_state(rank, before, "probe");
    const std::string output = capture.text();
    rank.check(output.empty(), "probe prints nothing", output.substr(0, 1000));
  }
}

void unknown_extension_null(Rank& rank) {
  const std::unique_ptr<Agent> agent = rank.open();
  const std::string endless(2000, 'x');
  for (const char* id : {"nobody.knows/1", "", "backplane", "backplane.reduce/999", "\xc3\xa4/1", endless.c_str()}) {
    rank.step("asking for an extension that does not exist");
    rank.check(agent->api().extension(agent->self(), id) == nullptr,
               "NULL for the unknown extension '" + std::string(id).substr(0, 40) + "'", "a pointer");
  }
}

const bp_backend* same_backend(const bp_plugin& plugin, const char* id) {
  for (uint32_t i = 0; i < plugin.backend_count; ++i) {
    if (std::strcmp(plugin.backends[i]->id, id) == 0) return plugin.backends[i];
  }
  return nullptr;
}

void two_copies(Rank& rank) {
  rank.step("opening a copy of the plugin");
  const bp_plugin& copy = second_copy(rank);
  rank.require(&copy != &rank.plugin(), "a copy with an entry of its own", "the first one's");
  const bp_backend* backend = same_backend(copy, rank.backend().id);
  rank.require(backend != nullptr && backend != &rank.backend(), "a copy with a backend of its own", "the first one's");
  const std::unique_ptr<Agent> first = rank.open(init::plan_in("first"));
  rank.step("in init of the copy");
  Plan plan = init::plan_in("second", rank.run().options, rank.hang_limit(20 * kSecond));
  plan.rank = rank.id();
  plan.on_device = rank.run().on_device;
  Outcome outcome;
  Agent second(
      *backend, rank.world(), plan, [](uint32_t, const char*) {}, outcome);
  rank.require_ok(outcome, "init of the copy");
  rank.step("sending in both copies");
  for (int round = 0; round < 3; ++round) {
    init::ring(rank, *first, 1000);
    init::ring(rank, second, 2000);
  }
  rank.barrier();
  first->close();
  rank.step("sending in the copy after the first has ended");
  rank.barrier();
  init::ring(rank, second, 3000);
}

// Starts and ends `count` groups and checks that no resource grows. All ranks make the same number of groups. `budget`
// limits the time of ranks that are alone.
void start_and_end(Rank& rank, int count, Nanoseconds budget) {
  const int warm_up = count / 5 + 1;  // for caches, thread stacks and arenas that are reused
  const Nanoseconds begin = now();
  Footprint before;
  uint64_t memory = 0;
  int done = 0;
  for (; done < count && (budget == 0 || done <= 2 * warm_up || now() - begin < budget); ++done) {
    rank.open(init::plan_in(fmt::format("again/{}", done)))->close();
    if (done != warm_up) continue;
    rank.barrier();  // ranks may be threads of one process, which see each other's groups
    before = Footprint::take();
    memory = resident_bytes();
    rank.barrier();
  }
  rank.barrier();
  constexpr size_t kRoom = size_t{8} << 20;  // bytes that an allocator may keep
  const std::string when = fmt::format(" after {} groups than after {}", done, warm_up);
  const std::string left = grown_since(before, rank.scaled(2 * kSecond));
  rank.check(left.empty(), fmt::format("nothing more{}", when), left);
  rank.check(has_sanitizer() || resident_bytes() <= memory + kRoom,
             fmt::format("no more memory{}: {} KiB", when, memory / 1024),
             fmt::format("{} KiB", resident_bytes() / 1024));
}

void init_destroy_1000(Rank& rank) { start_and_end(rank, 1000, rank.hang_limit(6 * kSecond)); }
void init_destroy_1000_full(Rank& rank) { start_and_end(rank, 1000, 0); }
void init_destroy_together(Rank& rank) { start_and_end(rank, 50, 0); }

}  // namespace

std::vector<Case> manners_cases() {
  return {
      Case("quiet-constructor", "loading prints nothing and changes nothing in the process", quiet_constructor,
           {.ops = 0, .file = true}, {.worlds = {1}, .deadline = 10 * kSecond, .loads = false}),
      Case("probe-harmless", "probe reports viability or a reason, and leaks nothing", probe_harmless,
           {.groups = false, .ops = 0}, {.worlds = {1}}),
      Case("unknown-extension-null", "an extension that the backend does not know is NULL", unknown_extension_null,
           {.ops = 0}, {.worlds = {1}}),
      Case("two-copies", "two copies of the file work side by side in one process", two_copies,
           {.without = BP_BACKEND_ONE_WORLD, .file = true}),
      Case("init-destroy-1000", "a thousand groups of one, or as many as six seconds allow, leak nothing",
           init_destroy_1000, {.ops = 0}, {.worlds = {1}, .deadline = 60 * kSecond}),
      Case("init-destroy-together", "fifty consecutive groups of all ranks leak nothing", init_destroy_together,
           {.ops = 0}, {.deadline = 60 * kSecond}),
      Case("init-destroy-1000-all", "a thousand groups of one leak nothing, however long that takes",
           init_destroy_1000_full, {.ops = 0}, {.level = Level::kFull, .worlds = {1}, .deadline = 600 * kSecond}),
  };
}

}  // namespace backplane::conformance::load
