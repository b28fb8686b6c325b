// SPDX-License-Identifier: Apache-2.0
//
// Does a backend keep the rules of the plugin ABI? This library runs the cases and says where it does not.
//
//     backplane::conformance::Subject subject;
//     subject.path = "backplane_acme.so";                      // or subject.entry = &bp_plugin_v1;
//     const Report report = check(subject, Settings{.ranks = 4});
//     std::cout << to_text(report);
//     return exit_code(report);
//
// It drives the backend through the bare ABI with a host table and a store of its own: no core takes part. Each case
// runs its ranks as fresh child processes (backends whose ranks share one process: as threads of one child) under a
// supervisor with a deadline, so a plugin that crashes, hangs or exits costs its own case and no more. The supervisor
// itself never opens the plugin. What the core adds over every backend is the business of the core's own tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backplane/abi/abi.h"

namespace backplane::conformance {

// What is checked. A path is loaded afresh in each child; an entry is a plugin that is linked into this program.
struct Subject {
  std::string path;
  const bp_plugin* entry = nullptr;
  std::string backend;  // id; empty: the plugin's first
  // What a harness has to know about one backend to run it at all. Nothing here can excuse a failure.
  std::map<std::string, std::string> options = {};  // values that replace defaults of the schema
};

enum class Level {
  kMust,  // every backend
  kFull   // also what is slow, large or a matter of quality
};

enum class Verdict { kPassed, kFailed, kSkipped };

// What one rank saw that it should not have seen.
struct Finding {
  int32_t rank = -1;     // -1: the supervisor saw it
  std::string expected;  // may be empty
  std::string actual;
  std::string step;  // what the rank was doing then
};

struct Result {
  std::string group;  // "p2p"
  std::string name;   // "tag-match"
  std::string about;  // one line: the rule that is checked
  Level level = Level::kMust;
  Verdict verdict = Verdict::kSkipped;
  std::string reason;  // why it was skipped
  std::vector<Finding> findings;
  std::string output;  // what the ranks printed or logged, if it failed (at most 4 KiB)
  double seconds = 0;
  uint64_t seed = 0;
  std::string reproduce;  // a command
};

// One native combination of the capability matrix.
struct Cell {
  uint32_t op = 0;  // BP_ALL_REDUCE ...
  uint32_t dtype = 0;
  uint32_t reduce_op = 0;  // 0 for operations that reduce nothing
  uint32_t memory = 0;     // BP_HOST ...
  uint64_t passed = 0;     // how often it was seen to be right ...
  uint64_t failed = 0;     // ... and wrong; neither: declared, not tried
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
  std::string error;  // why the check could not be done (no such file, ranks out of range, no process); else empty
  double seconds = 0;
};

struct Progress {
  size_t done = 0;  // cases that have ended
  size_t total = 0;
  const Result* last = nullptr;  // the one that has just ended; null when `running` begins
  std::string running;           // "p2p.tag-match"
};

struct Settings {
  int32_t ranks = 4;  // 1 .. 64
  Level level = Level::kMust;
  std::vector<std::string> filters = {};    // "p2p", "p2p.tag-match", or with * and ?; empty: all
  uint64_t seed = 0;                        // 0: drawn
  bool on_device = false;                   // operations get memory of the backend's device in place of the host's
  double patience = 1;                      // factor on all deadlines, for slow machines and instrumented builds
  std::string command = "backplane check";  // how `reproduce` begins
  std::function<void(const Progress&)> on_progress = {};
  // Called in each child process before it does anything else, with the (lowest) rank that it plays.
  std::function<void(int32_t rank)> in_child = {};
};

// The cases there are, with their level and meaning; verdict kSkipped.
std::vector<Result> cases();

// Runs the cases, one after the other. Blocks (about a minute at 4 ranks). The caller should have no other threads:
// children are forked. Never throws for what the plugin does; Report::error tells of the harness's own harness_error.
Report check(const Subject& subject, const Settings& settings);

std::string to_text(const Report& report, bool colour = false);
std::string to_tap(const Report& report);    // version 13
std::string to_junit(const Report& report);  // JUnit XML
std::string to_json(const Report& report);
std::string progress_line(const Progress& progress);  // "[ 12/110] p2p.tag-match"

// 0: everything of the MUST level that ran has passed; 1: not; 2: Report::error, nothing can be said.
int exit_code(const Report& report);

}  // namespace backplane::conformance
