// SPDX-License-Identifier: Apache-2.0
//
// The jobs of `backplane bench`: one for all backends that connect processes, one per peer.
#pragma once

#include <string>
#include <vector>

#include "measure/results.hpp"
#include "measure/task.hpp"
#include "run/signals.hpp"

namespace backplane::tool {

struct BenchJob {
  std::vector<std::string> targets;  // as the report names them
  // The command line: command, the task's arguments, more, and the path of a directory if the job wants one.
  std::vector<std::string> command;
  std::vector<std::string> more;
  bool wants_directory = false;  // an empty one, through which the ranks exchange their addresses
  bool launches_itself = false;  // one process is started, which starts the ranks
  bool is_peer = false;
};

// `names` as --backend takes them; empty: all viable backends that connect processes. Backends whose ranks must be
// threads form a job of their own. Throws Failure if a backend cannot be measured.
std::vector<BenchJob> backend_jobs(const std::vector<std::string>& names, int ranks);

// Runs a job and returns its exit code. Result::target is an index into job.targets.
int run_bench_job(const BenchJob& job, int ranks, bench::Task task, Signals& signals,
                  std::vector<bench::Result>& results);

}  // namespace backplane::tool
