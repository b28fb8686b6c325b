// SPDX-License-Identifier: Apache-2.0
#include "bench/round_robin.hpp"

#include <fmt/format.h>

#include <utility>

#include "common/failure.hpp"

namespace backplane::tool {
namespace {

void append(std::vector<double>& all, const std::vector<double>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

}  // namespace

int RoundRobin::run(std::vector<BenchJob> jobs) {
  int worst = 0;
  for (int round = 0; round < report_.rounds; ++round) {
    for (BenchJob& job : jobs) {
      if (job.command.empty()) continue;  // has failed
      std::vector<bench::Result> results;
      const int code = run_bench_job(job, ranks_, task_, signals_, results);
      collect(job, results);
      if (signals_.taken_end() != 0) return kSignalled + signals_.taken_end();
      if (code == 0) continue;
      worst = code;
      if (!job.is_peer) return code;
      report_.skipped.push_back(
          {job.targets.front(), fmt::format("its driver exited with code {} at {} ranks", code, ranks_)});
      job.command.clear();
    }
  }
  return worst == 0 ? 0 : kFailed;
}

bool RoundRobin::report(const std::vector<BenchJob>& jobs) {
  bool right = true;
  for (const bench::Row& row : task_.rows) {
    for (const BenchJob& job : jobs) {
      for (const std::string& target : job.targets) {
        const auto found = samples_.find(Key(target, row.test, row.bytes));
        if (found == samples_.end() || found->second.result.us.empty()) continue;
        Samples& samples = found->second;
        right = right && samples.wrong.empty();
        report_.rows.push_back(summarize(target, ranks_, std::move(samples.result), std::move(samples.wrong)));
        samples_.erase(found);  // a row that the task names twice is reported once
      }
    }
  }
  return right;
}

void RoundRobin::collect(const BenchJob& job, const std::vector<bench::Result>& results) {
  for (const bench::Result& part : results) {
    if (part.target >= job.targets.size()) {
      throw Failure(kFailed, fmt::format("{} wrote a result of target {}, but it has {}", job.targets.front(),
                                         part.target, job.targets.size()));
    }
    Samples& all = samples_[Key(job.targets[part.target], part.row.test, part.row.bytes)];
    if (!part.wrong.empty()) {
      all.wrong.push_back(part.wrong);
      continue;
    }
    all.result.row = part.row;
    all.result.operations = part.operations;
    append(all.result.us, part.us);
    append(all.result.alone, part.alone);
    append(all.result.compute, part.compute);
  }
}

}  // namespace backplane::tool
