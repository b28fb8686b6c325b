// SPDX-License-Identifier: Apache-2.0
//
// Runs the ranks of one node: forwards output and signals, and ends all ranks when one fails.
#pragma once

#include <sys/resource.h>

#include <ctime>
#include <functional>
#include <memory>
#include <string>

#include "run/guard.hpp"
#include "run/plan.hpp"
#include "run/pmi_service.hpp"
#include "run/pmix.hpp"
#include "run/rank_environment.hpp"
#include "run/rank_output.hpp"
#include "run/rank_processes.hpp"
#include "run/signals.hpp"
#include "run/stdin_relay.hpp"
#include "run/termination.hpp"

namespace backplane::tool {

class Launch {
 public:
  // Called when the process of a rank has ended and others may wait for it. `identity`: "host, pid 17".
  using OnRankEnd = std::function<void(int rank, const std::string& identity, const std::string& how)>;

  Launch(const Job& job, const Plan& plan, Signals& signals, Guard& guard, OnRankEnd on_rank_end);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Returns the exit code, 0 if all ranks succeeded.
  int run();

 private:
  void raise_descriptor_limit();
  void start_rank(int local_rank);
  void wait_and_serve();
  void handle(int signal);
  void note_ended_ranks();
  void check_exit(int rank, pid_t pid, const siginfo_t& how);
  void stop_until_resumed();

  const Job& job_;
  const Plan& plan_;
  Signals& signals_;
  Guard& guard_;
  const OnRankEnd on_rank_end_;
  timespec started_ = {};
  rlimit descriptor_limit_ = {};  // of the ranks: that of this process before it raised its own
  RankOutput output_;
  StdinRelay input_;
  PmiService pmi_;
  const std::unique_ptr<base::PmixServer> pmix_;  // may be null
  RankProcesses ranks_;
  Termination termination_;
};

}  // namespace backplane::tool
