// SPDX-License-Identifier: Apache-2.0
#include "run/job.hpp"

#include <fmt/format.h>

#include <random>

#include "run/job_store.hpp"

namespace backplane::tool {

std::string random_job_id() {
  std::random_device entropy;
  return fmt::format("{:08x}{:08x}", entropy() & 0xFFFFFFFFU, entropy() & 0xFFFFFFFFU);
}

int run_job(Job& job, const Plan& plan, Signals& signals, Guard& guard) {
  JobStore store(job);
  const auto on_end = [&store](int rank, const std::string& identity, const std::string& how) {
    store.report_rank_end(rank, identity, how);
  };
  const int code = Launch(job, plan, signals, guard, on_end).run();
  const std::string error = store.close([&signals, code] { return code != 0 || signals.asked_to_end(); });
  if (!error.empty()) fmt::print(stderr, "backplane: {}\n", error);
  return code;
}

}  // namespace backplane::tool
