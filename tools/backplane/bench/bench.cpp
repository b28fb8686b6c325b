// SPDX-License-Identifier: Apache-2.0
//
// backplane bench: how fast backends are, side by side, and beside their peers.
#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "bench/job.hpp"
#include "bench/peers.hpp"
#include "bench/rank.hpp"
#include "bench/report.hpp"
#include "commands.hpp"
#include "common/failure.hpp"
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
  std::string json;
  std::string csv;
  std::string plot;
  bool tune = false;
  std::string tuning_file;
};

constexpr const char* kBenchFooter = R"(
OPERATION is a collective (barrier, broadcast, reduce, all_reduce, gather, scatter, all_gather, reduce_scatter,
all_to_all), send_recv (half a round trip between pairs of ranks), bandwidth (64 messages under way), or overlap (an
asynchronous all_reduce while the rank computes for as long as it takes; HIDDEN is how much of it that hides). All are
done on f32, sums. SIZE is N of the documentation in bytes: what a rank gives to or gets from each other one.

A sample is the mean of a block of operations, 200 us of them or one if that is longer, on the slowest rank. The blocks
of the backends take turns; peers, and backends whose ranks are threads, are jobs of their own, which take turns in
rounds. ALGBW and BUSBW are those of nccl-tests, from the median (GB are 10^9 bytes).

A peer is openmpi, mpich, raw-gloo, torch, or all of them; NAME?VARIABLE=VALUE&... sets variables of its environment.
One that is not installed is left out with a reason.

--tune writes the medians of the backends to BACKPLANE_TUNING_FILE, or else to ~/.local/share/backplane/tuning-HOST.json,
where 'auto' finds them ('backplane explain').

Exit codes: 0, 1 if a result was wrong or something failed, 2 wrong use, a rank's own if it failed.

  backplane bench -n 2 --pin
  backplane bench --backend gloo --backend 'zmq?io_threads=2' --operation all_reduce,broadcast --sizes 4:64M:16
  backplane bench -n 2,4 --peer all --json result.json --plot result.svg)";

uint64_t bytes_of(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  const std::string unit = end;
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  const bool sound =
      !text.empty() && text.front() != '-' && errno == 0 && shift >= 0 && number > 0 && number < (1ULL << 33);
  const uint64_t bytes = sound ? static_cast<uint64_t>(number) << shift : 0;
  if (bytes == 0 || bytes % sizeof(float) != 0 || bytes > (uint64_t{1} << 34)) {
    throw Failure(kWrongUse, fmt::format("--sizes {}: expected multiples of 4 up to 16G, as in 4,64K,1M or 4:64M:16",
                                         printable(text)));
  }
  return bytes;
}

// "4:64M:16": from, to, factor.
void add_sizes(const std::string& text, std::vector<uint64_t>& sizes) {
  const size_t first = text.find(':');
  if (first == std::string::npos) return sizes.push_back(bytes_of(text));
  const size_t second = text.find(':', first + 1);
  const std::string written = second == std::string::npos ? "2" : text.substr(second + 1);
  uint64_t factor = 0;
  const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), factor);
  if (error != std::errc() || end != written.data() + written.size() || factor < 2)
    throw Failure(kWrongUse, fmt::format("--sizes {}: the factor must be 2 or more", printable(text)));
  const uint64_t last = bytes_of(text.substr(first + 1, second == std::string::npos ? second : second - first - 1));
  const uint64_t least = bytes_of(text.substr(0, first));
  if (least > last) throw Failure(kWrongUse, fmt::format("--sizes {}: the range is empty", printable(text)));
  for (uint64_t size = least;; size *= factor) {
    sizes.push_back(size);
    if (size > last / factor) return;
  }
}

std::vector<bench::Row> rows_of(const BenchSettings& settings) {
  std::vector<uint64_t> sizes;
  for (const std::string& text : settings.sizes) add_sizes(text, sizes);
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
    throw Failure(kWrongUse, printable(error.what()));
  }
  return rows;
}

void check_pinning(const BenchSettings& settings) {
  cpu_set_t allowed;
  const int cores = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  const int ranks = *std::max_element(settings.ranks.begin(), settings.ranks.end());
  if (settings.pin && ranks > cores) {
    throw Failure(kWrongUse, fmt::format("--pin gives each rank a core, but there are {} for {} ranks", cores, ranks));
  }
}

std::vector<Contestant> find_contestants(const BenchSettings& settings, int ranks, std::vector<LeftOut>& left_out) {
  std::vector<Contestant> contestants = contestants_of(settings.backends, ranks);
  for (Contestant& contestant : contestants) {
    if (!settings.registered) break;
    Strings subjects;
    for (const std::string& subject : contestant.subjects) {
      subjects.insert(subjects.end(), {subject, fmt::format("{} registered", subject)});
    }
    contestant.subjects = std::move(subjects);
  }
  Strings peers;
  for (const std::string& peer : settings.peers) {
    const Strings all = peer_names();
    if (peer == "all") peers.insert(peers.end(), all.begin(), all.end());
    if (peer != "all") peers.push_back(peer);
  }
  for (const std::string& peer : peers) {
    try {
      contestants.push_back(find_peer(peer, ranks));
    } catch (const Failure& failure) {
      if (failure.exit_code() == kWrongUse) throw;
      left_out.push_back({fmt::format("peer {}", peer), failure.what()});
    }
  }
  return contestants;
}

void merge(bench::Finding& whole, const bench::Finding& part) {
  whole.operations = part.operations;
  whole.us.insert(whole.us.end(), part.us.begin(), part.us.end());
  whole.alone.insert(whole.alone.end(), part.alone.begin(), part.alone.end());
  whole.compute.insert(whole.compute.end(), part.compute.begin(), part.compute.end());
}

// All contestants with one number of ranks.
class Tournament {
 public:
  Tournament(const bench::Task& task, int ranks, Signals& signals, BenchReport& report)
      : task_(task), ranks_(ranks), signals_(signals), report_(report) {}

  // Returns an exit code; anything but 0 has been explained on stderr.
  int hold(std::vector<Contestant> contestants) {
    int worst = 0;
    for (int round = 0; round < report_.rounds; ++round) {
      for (Contestant& contestant : contestants) {
        if (contestant.command.empty()) continue;  // has failed
        std::vector<bench::Finding> findings;
        const int code = run_contestant(contestant, ranks_, task_, signals_, findings);
        collect(contestant, findings);
        if (signals_.taken_end() != 0) return kSignalled + signals_.taken_end();
        if (code == 0) continue;
        worst = code;
        if (!contestant.is_peer) return code;
        report_.left_out.push_back(
            {contestant.subjects.front(), fmt::format("its driver ended with exit code {} at {} ranks", code, ranks_)});
        contestant.command.clear();
      }
    }
    return worst == 0 ? 0 : kFailed;
  }

  // Into the report, in order.
  bool report(const std::vector<Contestant>& contestants) {
    bool right = true;
    for (const bench::Row& row : task_.rows) {
      for (const Contestant& contestant : contestants) {
        for (const std::string& subject : contestant.subjects) {
          const auto found = found_.find(key(subject, row));
          if (found == found_.end() || found->second.found.us.empty()) continue;
          for (auto* samples : {&found->second.found.us, &found->second.found.alone, &found->second.found.compute}) {
            std::sort(samples->begin(), samples->end());
          }
          right = right && found->second.wrong.empty();
          report_.results.push_back(std::move(found->second));
        }
      }
    }
    return right;
  }

 private:
  using Key = std::tuple<std::string, bench::Test, uint64_t>;
  static Key key(const std::string& subject, const bench::Row& row) { return {subject, row.test, row.bytes}; }

  void collect(const Contestant& contestant, const std::vector<bench::Finding>& findings) {
    for (const bench::Finding& finding : findings) {
      if (finding.subject >= contestant.subjects.size())
        throw Failure(kFailed, "results of a backend that was not asked");
      const std::string& subject = contestant.subjects[finding.subject];
      Measured& measured = found_[key(subject, finding.row)];
      measured.subject = subject;
      measured.ranks = ranks_;
      measured.row = finding.row;
      if (!finding.wrong.empty()) measured.wrong.push_back(finding.wrong);
      merge(measured.found, finding);
    }
  }

  const bench::Task& task_;
  const int ranks_;
  Signals& signals_;
  BenchReport& report_;
  std::map<Key, Measured> found_;
};

void write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw Failure(kFailed, fmt::format("cannot write {}: {}", printable(path), errno_text(errno)));
}

// Where the core looks for it (core/src/registry/tuning.hpp).
std::string tuning_file(const BenchSettings& settings) {
  if (!settings.tuning_file.empty()) return settings.tuning_file;
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (!variable("BACKPLANE_TUNING_FILE").empty()) return variable("BACKPLANE_TUNING_FILE");
  const std::string data = variable("XDG_DATA_HOME");
  const std::string home = variable("HOME");
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  if (!data.starts_with('/') && !home.starts_with('/')) {
    throw Failure(kWrongUse, "--tune knows no place for its file, as there is no HOME; name one by --tuning-file");
  }
  const std::string base = data.starts_with('/') ? data : fmt::format("{}/.local/share", home);
  return fmt::format("{}/backplane/tuning-{}.json", base, host.data());
}

// In one step, so that no rank sees half of it; for everyone to read, whatever umask is set.
void write_tuning(const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  const std::string fresh = fmt::format("{}.new", path);
  std::error_code error;
  const mode_t mask = ::umask(022);
  fs::create_directories(fs::path(path).parent_path(), error);  // if there is none, write_file says so
  write_file(fresh, text);
  ::umask(mask);
  fs::rename(fresh, path, error);
  if (error) throw Failure(kFailed, fmt::format("cannot write {}: {}", printable(path), error.message()));
}

int run_bench(const BenchSettings& settings) {
  const std::string tuning = settings.tune ? tuning_file(settings) : "";
  bench::Task task;
  task.rows = rows_of(settings);
  check_pinning(settings);
  for (const std::string* path : {&settings.json, &settings.csv, &settings.plot}) write_file(*path, "");  // rather now
  BenchReport report;
  report.pinned = task.pin = settings.pin;
  task.registered = settings.registered;
  task.devices = settings.devices;
  report.checked = task.check = settings.check;
  task.progress = true;
  Signals signals;
  bool right = true;
  int code = 0;
  for (const int ranks : settings.ranks) {
    std::vector<LeftOut> missing;
    const std::vector<Contestant> contestants = find_contestants(settings, ranks, missing);
    if (report.left_out.empty()) report.left_out = missing;  // the same whatever the number of ranks
    report.rounds = settings.rounds > 0 ? settings.rounds : contestants.size() > 1 ? 3 : 1;
    report.seconds = settings.seconds;
    task.seconds = settings.seconds / report.rounds;
    Tournament tournament(task, ranks, signals, report);
    code = std::max(code, tournament.hold(contestants));
    right = tournament.report(contestants) && right;
    if (code > kFailed) break;
  }
  if (report.results.empty()) return code == 0 ? kFailed : code;
  write_file(settings.json, bench_json(report));
  write_file(settings.csv, bench_csv(report));
  write_file(settings.plot, bench_svg(report));
  fmt::print("{}", bench_table(report));
  if (!tuning.empty() && right && code == 0) {
    write_tuning(tuning, bench_tuning(report));
    fmt::print("auto chooses by this now: {}\n", printable(tuning));
  }
  return right ? code : std::max(code, kFailed);
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<BenchSettings>();
  CLI::App* command = app.add_subcommand("bench", "Measure backends side by side, and beside other libraries");
  command->footer(kBenchFooter);
  const auto list = [command](const std::string& name, Strings& values, const char* about, const char* text) {
    return command->add_option(name, values, about)->delimiter(',')->option_text(text);
  };
  command->add_option("-n,--ranks", settings->ranks, "Ranks, all on this machine; several numbers: one after the other")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->option_text("N,... (2)");
  command
      ->add_option("--backend", settings->backends,
                   "A backend, as in 'gloo?iface=lo'; repeatable. Left out: all viable")
      ->option_text("NAME")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--peer", settings->peers, "Another library; repeatable")
      ->option_text("NAME")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  list("--operation", settings->operations, "What to measure", "OPERATION,... (all_reduce)");
  list("--sizes", settings->sizes, "Sizes in bytes with K, M or G, or FROM:TO:FACTOR", "SIZE,... (4,1K,64K,1M)");
  command->add_option("--seconds", settings->seconds, "Time for each backend, operation and size")
      ->check(CLI::Range(0.001, 1e5))
      ->option_text("SECONDS (0.5)");
  command->add_option("--rounds", settings->rounds, "How often jobs take turns; 3 if there are several, else 1")
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  command->add_flag("--check", settings->check, "Verify the results of each operation and size first");
  command->add_flag("--pin", settings->pin, "Put rank i's thread on the i-th core; a backend's own threads stay free");
  command->add_flag("--registered", settings->registered,
                    "Measure each backend also with buffers that it has allocated (ProcessGroup::allocate)");
  command
      ->add_option(
          "--devices", settings->devices,
          "Measure with buffers on so many CUDA devices, rank i on number i modulo N, instead of on the host; the "
          "backend has to take host buffers, too (nccl?stage=true)")
      ->check(CLI::Range(1, 1024))
      ->option_text("N")
      ->excludes("--check")
      ->excludes("--registered");
  command->add_option("--json", settings->json, "Write the results to this file as JSON")->option_text("FILE");
  command->add_option("--csv", settings->csv, "Likewise as CSV")->option_text("FILE");
  command->add_option("--plot", settings->plot, "Likewise as a drawing (SVG)")->option_text("FILE");
  CLI::Option* tune = command->add_flag("--tune", settings->tune, "Let 'auto' choose by these results on this host")
                          ->excludes("--registered")
                          ->excludes("--devices");
  command
      ->add_option("--tuning-file", settings->tuning_file, "Where to write them to, instead of BACKPLANE_TUNING_FILE")
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
      throw Failure(kWrongUse, "this subcommand is for the command's own use");
    }
  });
}

}  // namespace backplane::tool
