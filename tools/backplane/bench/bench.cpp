// SPDX-License-Identifier: Apache-2.0
//
// backplane bench: measures backends side by side, and beside other libraries.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "bench/job.hpp"
#include "bench/peers.hpp"
#include "bench/rank.hpp"
#include "bench/report.hpp"
#include "bench/round_robin.hpp"
#include "bench/sizes.hpp"
#include "bench/tuning.hpp"
#include "commands.hpp"
#include "common/failure.hpp"
#include "common/files.hpp"
#include "common/table.hpp"
#include "run/signals.hpp"

namespace backplane::tool {
namespace {

using Strings = std::vector<std::string>;

struct BenchSettings {
  Strings backends;
  Strings peers;
  Strings operations = {"all_reduce"};
  Strings sizes = {"4", "1K", "64K", "1M"};
  std::vector<int> ranks = {2};
  double seconds = 0.5;
  int rounds = 0;
  bool check = false;
  bool pin = false;
  bool registered = false;
  int devices = 0;
  Strings from;
  std::string json;
  std::string csv;
  std::string plot;
  std::string title;
  bool tune = false;
  std::string tuning_file;
};

constexpr const char* kBenchFooter = R"(
OPERATION is a collective (barrier, broadcast, reduce, all_reduce, gather, scatter, all_gather, reduce_scatter,
all_to_all), send_recv (half a round trip between pairs of ranks), bandwidth (64 messages in flight) or overlap (an
asynchronous all_reduce beside as much computation; HIDDEN is the share of its time that the computation hides). All use
f32, reductions are sums. SIZE is in bytes what a rank sends to, or receives from, each other rank.

A sample is the mean over a block of operations on the slowest rank; a block lasts 200 us or one operation, whichever is
longer. The blocks of the backends alternate. Peers, and backends whose ranks are threads, run as jobs of their own, which
alternate in rounds. ALGBW and BUSBW are defined as in nccl-tests, from the median, in 10^9 bytes per second.

A peer is openmpi, mpich, raw-gloo or torch, or 'all'; NAME?VARIABLE=VALUE&... sets environment variables for it. A NAME
with a slash is a program: it is started with the number of ranks, followed by the arguments of a driver, which it passes
to each rank. A peer that is not installed is skipped with a reason.

--json writes the machine, date, command, library versions and one row per measurement; share/bench/README.md in the
installed data specifies it. --plot draws one panel per operation and number of ranks: median times over sizes, one line
per backend, both axes logarithmic. --from reads JSON files instead of measuring, for the table, --csv and --plot.

--tune writes the medians of the backends to BACKPLANE_TUNING_FILE, by default
~/.local/share/backplane/tuning-HOST.json, where 'auto' reads them ('backplane explain').

Exit codes: 0; 1 if a result was wrong or a measurement failed; 2 wrong use; a failed rank's own.

Examples:
  backplane bench -n 2 --pin
  backplane bench --backend gloo --backend 'zmq?io_threads=2' --operation all_reduce,broadcast --sizes 4:64M:16
  backplane bench -n 2,4 --peer all --json result.json --plot result.svg
  backplane bench --from monday.json,friday.json --plot both.svg)";

std::vector<bench::Row> rows_of(const BenchSettings& settings) {
  const std::vector<uint64_t> sizes = parse_sizes(settings.sizes);
  std::vector<bench::Row> rows;
  try {
    for (const std::string& name : settings.operations) {
      const bench::Test test = bench::test_of(name);
      if (test == bench::Test::kBarrier) {
        rows.push_back({test, 0});
        continue;
      }
      for (const uint64_t bytes : sizes) rows.push_back({test, bytes});
    }
  } catch (const std::invalid_argument& error) {
    throw Failure(kWrongUse, fmt::format("--operation: {}", printable(error.what())));
  }
  return rows;
}

void check_pinning(const BenchSettings& settings) {
  cpu_set_t allowed;
  const int cores = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  const int ranks = *std::max_element(settings.ranks.begin(), settings.ranks.end());
  if (settings.pin && ranks > cores) {
    throw Failure(kWrongUse,
                  fmt::format("--pin needs a core per rank, but there are {} cores for {} ranks", cores, ranks));
  }
}

std::vector<BenchJob> find_jobs(const BenchSettings& settings, int ranks, std::vector<Skipped>& skipped) {
  std::vector<BenchJob> jobs;
  if (settings.backends != Strings{"none"}) jobs = backend_jobs(settings.backends, ranks);
  for (BenchJob& job : jobs) {
    if (!settings.registered) break;
    Strings targets;
    for (const std::string& target : job.targets) {
      targets.insert(targets.end(), {target, fmt::format("{} registered", target)});
    }
    job.targets = std::move(targets);
  }
  Strings peers;
  for (const std::string& peer : settings.peers) {
    const Strings all = peer_names();
    if (peer == "all") peers.insert(peers.end(), all.begin(), all.end());
    if (peer != "all") peers.push_back(peer);
  }
  for (const std::string& peer : peers) {
    try {
      jobs.push_back(find_peer(peer, ranks));
    } catch (const Failure& failure) {
      if (failure.exit_code() == kWrongUse) throw;
      skipped.push_back({fmt::format("peer {}", peer), failure.what()});
    }
  }
  if (jobs.empty()) {
    const std::string why = skipped.empty() ? "name a peer with --peer" : skipped.front().reason;
    throw Failure(kFailed, fmt::format("there is nothing to measure: {}", why));
  }
  return jobs;
}

void write_if_named(const std::string& path, const std::string& text) {
  if (!path.empty()) write_file(path, text);
}

// Returns an exit code, and fills in the report as far as the measurement went.
int measure(const BenchSettings& settings, const bench::Task& settings_task, BenchReport& report) {
  bench::Task task = settings_task;
  Signals signals;
  bool right = true;
  int code = 0;
  for (const int ranks : settings.ranks) {
    std::vector<Skipped> skipped;
    const std::vector<BenchJob> jobs = find_jobs(settings, ranks, skipped);
    if (ranks == settings.ranks.front()) {  // these do not depend on the number of ranks
      report.skipped = skipped;
      Strings targets;
      for (const BenchJob& job : jobs) targets.insert(targets.end(), job.targets.begin(), job.targets.end());
      report.environment = read_environment(targets);
    }
    report.rounds = settings.rounds > 0 ? settings.rounds : jobs.size() > 1 ? 3 : 1;
    report.seconds = settings.seconds;
    task.seconds = settings.seconds / report.rounds;
    RoundRobin rounds(task, ranks, signals, report);
    code = std::max(code, rounds.run(jobs));
    right = rounds.report(jobs) && right;
    if (code > kFailed) break;
  }
  return right ? code : std::max(code, kFailed);
}

int run_bench(const BenchSettings& settings) {
  const std::string tuning = settings.tune ? tuning_file(settings.tuning_file) : "";
  BenchReport report;
  int code = 0;
  if (!settings.from.empty()) {
    report = read_reports(settings.from);
  } else {
    bench::Task task;
    task.rows = rows_of(settings);
    check_pinning(settings);
    // A file that cannot be written is reported before the measurement.
    for (const std::string* path : {&settings.json, &settings.csv, &settings.plot}) write_if_named(*path, "");
    report.pinned = task.pin = settings.pin;
    report.checked = task.check = settings.check;
    task.registered = settings.registered;
    task.devices = settings.devices;
    task.progress = true;
    code = measure(settings, task, report);
  }
  if (!settings.title.empty()) report.title = settings.title;
  if (report.rows.empty()) return code == 0 ? kFailed : code;
  write_if_named(settings.json, bench_json(report));
  write_if_named(settings.csv, bench_csv(report));
  write_if_named(settings.plot, bench_svg(report));
  fmt::print("{}", bench_table(report));
  if (!tuning.empty() && code == 0) {
    write_tuning(tuning, report);
    fmt::print("'auto' on this host now chooses by {}\n", printable(tuning));
  }
  return code;
}

// An option that may be given several times, with one value each: values may contain commas.
void add_repeatable(CLI::App* command, const std::string& name, Strings& values, const char* value, const char* about) {
  command->add_option(name, values, about)
      ->option_text(value)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_measuring_options(CLI::App* command, BenchSettings& settings) {
  command->add_option("-n,--ranks", settings.ranks, "Ranks, all on this machine; several numbers are run in turn")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->option_text("N,... (2)");
  add_repeatable(
      command, "--backend", settings.backends, "BACKEND",
      "A backend, as in 'gloo?iface=lo' or shm+gloo; repeatable. Default: all that are viable; none: peers alone");
  add_repeatable(command, "--peer", settings.peers, "NAME", "Another library to measure beside them; repeatable");
  command->add_option("--operation", settings.operations, "Operations to measure")
      ->delimiter(',')
      ->option_text("OPERATION,... (all_reduce)");
  command->add_option("--sizes", settings.sizes, "Sizes in bytes with K, M or G, or FROM:TO:FACTOR")
      ->delimiter(',')
      ->option_text("SIZE,... (4,1K,64K,1M)");
  command->add_option("--seconds", settings.seconds, "Time per backend, operation and size")
      ->check(CLI::Range(0.001, 1e5))
      ->option_text("SECONDS (0.5)");
  command->add_option("--rounds", settings.rounds, "Turns per job; 3 if there are several jobs, else 1")
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  command->add_flag("--check", settings.check, "Verify the results of each operation and size first");
  command->add_flag("--pin", settings.pin, "Bind rank i's main thread to the i-th core, the backend's own threads not");
  command->add_flag("--registered", settings.registered,
                    "Measure each backend also with buffers that it allocated (ProcessGroup::allocate)");
  command
      ->add_option("--devices", settings.devices,
                   "Use buffers on N CUDA devices, rank i on device i modulo N. The backend must take host buffers as "
                   "well (nccl?stage=true)")
      ->check(CLI::Range(1, 1024))
      ->option_text("N")
      ->excludes("--check")
      ->excludes("--registered");
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<BenchSettings>();
  CLI::App* command = app.add_subcommand("bench", "Measure backends side by side, and beside other libraries");
  command->footer(kBenchFooter);
  add_measuring_options(command, *settings);
  CLI::Option* json =
      command->add_option("--json", settings->json, "Write the results to this file as JSON")->option_text("FILE");
  command->add_option("--csv", settings->csv, "Write the results to this file as CSV")->option_text("FILE");
  CLI::Option* plot = command->add_option("--plot", settings->plot, "Write a chart of the results to this file (SVG)")
                          ->option_text("FILE");
  command->add_option("--title", settings->title, "Heading of the chart")->option_text("TEXT")->needs(plot);
  CLI::Option* from =
      command->add_option("--from", settings->from, "Read results from these JSON files, do not measure")
          ->delimiter(',')
          ->option_text("FILE,...")
          ->excludes(json);
  for (const char* other : {"--ranks", "--backend", "--peer", "--operation", "--sizes", "--check", "--pin"}) {
    from->excludes(other);
  }
  CLI::Option* tune = command->add_flag("--tune", settings->tune, "Let 'auto' choose by these results on this host")
                          ->excludes("--registered")
                          ->excludes("--devices")
                          ->excludes(from);
  command->add_option("--tuning-file", settings->tuning_file, "Tuning file, instead of BACKPLANE_TUNING_FILE")
      ->option_text("FILE")
      ->needs(tune);
  command->callback([settings, &exit_code] { exit_code = run_bench(*settings); });
}

void add_bench_rank(CLI::App& app) {
  auto words = std::make_shared<Strings>();
  CLI::App* command = app.add_subcommand(kBenchRankCommand)->group("");
  command->add_option("words", *words, "The task, a number of threads, backends")->required();
  command->callback([words] {
    constexpr size_t kOwn = bench::kTaskArguments + 1;
    try {
      if (words->size() <= kOwn) throw std::invalid_argument("too few words");
      const Strings backends(words->begin() + kOwn, words->end());
      measure_backends(bench::to_task(*words), backends, std::stoi((*words)[kOwn - 1]));
    } catch (const std::invalid_argument&) {
      throw Failure(kWrongUse, fmt::format("{} is started by 'backplane bench' alone", kBenchRankCommand));
    }
  });
}

}  // namespace backplane::tool
