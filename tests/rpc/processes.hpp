// SPDX-License-Identifier: Apache-2.0
//
// Starts ranks as processes.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "backplane/base/subprocess.hpp"
#include "backplane/store.hpp"
#include "support/environment.hpp"

namespace backplane::test {

// Runs `command` as each rank of a job. Returns the status of each (waitpid).
inline std::vector<int> run_ranks(int count, const std::vector<std::string>& command) {
  const StoreServer server("127.0.0.1", 0, "ranks");
  const ScopedVariable address("MASTER_ADDR", "127.0.0.1");
  const ScopedVariable port("MASTER_PORT", std::to_string(server.port()));
  const ScopedVariable world("WORLD_SIZE", std::to_string(count));
  const ScopedVariable hosted("BACKPLANE_STORE_HOSTED", "1");
  const ScopedVariable job("BACKPLANE_JOB_ID", "ranks");
  std::vector<base::Subprocess> processes;
  for (int rank = 0; rank < count; ++rank) {
    const ScopedVariable own("RANK", std::to_string(rank));
    processes.push_back(base::Subprocess::spawn({.path = command.front(), .arguments = command}));
    EXPECT_EQ(processes.back().exec_error(), 0);
  }
  const auto deadline = base::Deadline::after(INT64_C(120'000'000'000));
  std::vector<int> statuses;
  for (base::Subprocess& process : processes) {
    const std::optional<int> status = process.wait(deadline);
    EXPECT_TRUE(status) << "process " << process.pid() << " does not end";
    statuses.push_back(status ? *status : process.kill());
  }
  return statuses;
}

}  // namespace backplane::test
