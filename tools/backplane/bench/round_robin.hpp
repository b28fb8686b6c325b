// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bench/job.hpp"
#include "bench/report.hpp"
#include "run/signals.hpp"

namespace backplane::tool {

// Runs all jobs with one number of ranks, in rounds: each job has one turn per round.
class RoundRobin {
 public:
  RoundRobin(const bench::Task& task, int ranks, Signals& signals, BenchReport& report)
      : task_(task), ranks_(ranks), signals_(signals), report_(report) {}

  // Returns an exit code. Failures are reported on stderr, or as skipped if a peer failed.
  int run(std::vector<BenchJob> jobs);

  // Appends the rows to the report, in the order of task and jobs. Returns false if a result was wrong.
  bool report(const std::vector<BenchJob>& jobs);

 private:
  using Key = std::tuple<std::string, bench::Test, uint64_t>;
  struct Samples {
    bench::Result result;  // all rounds
    std::vector<std::string> wrong;
  };

  void collect(const BenchJob& job, const std::vector<bench::Result>& results);

  const bench::Task& task_;
  const int ranks_;
  Signals& signals_;
  BenchReport& report_;
  std::map<Key, Samples> samples_;
};

}  // namespace backplane::tool
