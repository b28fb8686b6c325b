// SPDX-License-Identifier: Apache-2.0
//
// The conformance harness: runs cases that check whether a backend keeps the rules of the plugin ABI.
//
//     backplane::conformance::Subject subject;
//     subject.path = "backplane_acme.so";                      // or subject.entry = &bp_plugin_v1;
//     const Report report = check(subject, Settings{.ranks = 4});
//     std::cout << to_text(report);
//     return exit_code(report);
//
// The harness drives the backend through the bare ABI, with its own host table and store; libbackplane takes no part.
// Each case runs its ranks as new child processes under a supervisor with a deadline, so that a plugin that crashes,
// hangs or exits fails only its own case. Backends whose ranks share one process run as threads of one child. The
// supervisor never opens the plugin. What the core adds over a backend is tested by the core's tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backplane/abi/abi.h"

namespace backplane::conformance {

// The plugin to check: either `path`, which each child loads, or `entry`, a plugin linked into this program.
struct Subject {
  std::string path;
  const bp_plugin* entry = nullptr;
  std::string backend;                              // id; empty: the plugin's first
  std::map<std::string, std::string> options = {};  // backend options; they replace the schema's defaults
};

// Each level includes those before it.
enum class Level {
  kMust,     // every backend, in a minute
  kFull,     // slow and large cases, and cases about quality, which affect no exit code
  kThorough  // rules for every backend whose cases take long: up to ten minutes
};

enum class Verdict { kPassed, kFailed, kSkipped };

// One violation of a rule, as one rank observed it.
struct Finding {
  int32_t rank = -1;     // -1: observed by the supervisor
  std::string expected;  // may be empty
  std::string actual;
  std::string step;  // the step of the case that the rank was in
};

// A case that fails because of a fault that is known, usually of a library below the backend.
struct KnownFailure {
  std::string reason;
  bool is_intermittent = false;  // the case may also pass
};

struct Result {
  std::string group;  // "p2p"
  std::string name;   // "tag-match"
  std::string about;  // the rule that the case checks, in one line
  Level level = Level::kMust;
  Verdict verdict = Verdict::kSkipped;
  std::string reason;     // why it was skipped
  std::string known;      // why it was expected to fail, if it has failed as expected; else empty
  bool outdated = false;  // it passed, and Settings::known_failures lists it: the verdict is kFailed
  std::vector<Finding> findings;
  std::string output;  // of the ranks and their logs, if the case failed; at most 4 KiB
  double seconds = 0;
  uint64_t seed = 0;
  std::string reproduce;  // the command that runs this case with this seed
};

// One native combination of the capability matrix.
struct Cell {
  uint32_t op = 0;  // BP_ALL_REDUCE ...
  uint32_t dtype = 0;
  uint32_t reduce_op = 0;  // 0 for operations that reduce nothing
  uint32_t memory = 0;     // BP_HOST ...
  uint64_t passed = 0;     // number of correct results
  uint64_t failed = 0;     // number of wrong results; both 0: declared but not tried
};

struct Report {
  std::string subject;  // path, or the plugin's vendor
  std::string backend;  // id
  std::string version;
  int32_t ranks = 0;
  Level level = Level::kMust;
  uint64_t seed = 0;
  std::vector<Result> results;  // in the order of cases()
  std::vector<Cell> matrix;
  std::vector<std::string> notes;  // remarks that affect no verdict, one sentence each
  // Why the check could not be run or completed (no such file, the backend's probe refuses, no process); else empty.
  std::string error;
  double seconds = 0;
};

struct Progress {
  size_t done = 0;  // number of cases that have ended
  size_t total = 0;
  const Result* last = nullptr;    // of the case that has just ended; null when `running` begins
  std::string running;             // "p2p.tag-match"
  const Report* so_far = nullptr;  // the report without the cases to come; valid during the call
};

struct Settings {
  int32_t ranks = 4;  // 1 .. 64
  Level level = Level::kMust;
  std::vector<std::string> filters = {};    // "p2p", "p2p.tag-match", or patterns with * and ?; empty: all cases
  uint64_t seed = 0;                        // 0: a random seed
  bool on_device = false;                   // operations use memory of the backend's device instead of host memory
  double timeout_scale = 1;                 // factor on all deadlines, for slow machines and instrumented builds
  std::string command = "backplane check";  // the beginning of Result::reproduce
  std::function<void(const Progress&)> on_progress = {};
  // Called first in each child process, with its rank, or the lowest of its ranks.
  std::function<void(int32_t rank)> in_child = {};
  // The program backplane-pmix-server, so that Open MPI starts in the ranks of backends with BP_BACKEND_ONE_WORLD. Each
  // start of ranks has one. Empty: none; MPIs that speak PMI-1 start in any case.
  std::string pmix_server = {};
  // By case, "p2p.tag-match". The failure of such a case does not count. One that passes fails, unless its failure is
  // intermittent: the list is then out of date.
  std::map<std::string, KnownFailure> known_failures = {};
};

// Lists all cases, each with its rule and level and the verdict kSkipped. Runs none.
std::vector<Result> cases();

// Runs the cases one after the other. Blocks, about a minute with 4 ranks. Forks: the caller should have no other
// threads. Nothing that the plugin does makes it throw; Report::error reports failures of the harness itself.
Report check(const Subject& subject, const Settings& settings);

std::string to_text(const Report& report, bool colour = false);
std::string to_tap(const Report& report);    // version 13
std::string to_junit(const Report& report);  // JUnit XML
std::string to_json(const Report& report);
std::string to_badge(const Report& report);  // an SVG image, 20 pixels high: the backend and how many cases passed
std::string progress_line(const Progress& progress);  // "[ 12/110] p2p.tag-match"
std::string result_line(const Result& result);        // "FAILED p2p.tag-match (0.1 s): rank 2 got 7, expected 8"

// 0: every case of the levels kMust and kThorough that ran has passed, or failed as expected, and no known failure is
// outdated; 1: otherwise; 2: Report::error is set, there is no verdict.
int exit_code(const Report& report);

}  // namespace backplane::conformance
