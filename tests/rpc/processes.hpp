// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "backplane/store.hpp"
#include "support/environment.hpp"

namespace backplane::test {

inline pid_t spawn(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ), 0);
  return pid;
}

// The status of a process (waitpid). One that has not ended by then is killed, and fails the test.
inline int status_at_end(pid_t pid, std::chrono::steady_clock::time_point until) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd ended = {process, POLLIN, 0};
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
  if (poll(&ended, 1, static_cast<int>(std::max<int64_t>(left, 0))) == 0) {
    ADD_FAILURE() << "process " << pid << " does not end";
    kill(pid, SIGKILL);
  }
  close(process);
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

// Runs `command` as each rank of a job. Returns the status of each (waitpid).
inline std::vector<int> run_ranks(int count, const std::vector<std::string>& command) {
  const StoreServer server("127.0.0.1", 0, "ranks");
  const ScopedVariable address("MASTER_ADDR", "127.0.0.1");
  const ScopedVariable port("MASTER_PORT", std::to_string(server.port()));
  const ScopedVariable world("WORLD_SIZE", std::to_string(count));
  const ScopedVariable hosted("BACKPLANE_STORE_HOSTED", "1");
  const ScopedVariable job("BACKPLANE_JOB_ID", "ranks");
  std::vector<pid_t> pids;
  for (int rank = 0; rank < count; ++rank) {
    const ScopedVariable own("RANK", std::to_string(rank));
    pids.push_back(spawn(command));
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  std::vector<int> statuses;
  for (const pid_t pid : pids) statuses.push_back(status_at_end(pid, until));
  return statuses;
}

}  // namespace backplane::test
