// SPDX-License-Identifier: Apache-2.0
//
// Ends the ranks when one fails, at the time limit, or when the user asks: first by SIGTERM or the user's signal, after
// the grace period by SIGKILL.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "backplane/base/deadline.hpp"
#include "run/plan.hpp"
#include "run/rank_output.hpp"
#include "run/rank_processes.hpp"

namespace backplane::tool {

class Termination {
 public:
  Termination(const Plan& plan, const RankProcesses& ranks, RankOutput& output);

  // The time limit begins.
  void start();
  // A rank has failed, or the job. The first failure determines the exit code.
  void fail(int exit_code, const std::string& why);
  // SIGINT, SIGTERM or SIGHUP has arrived. The second one kills the ranks. Throws Failure if none is left to wait for.
  void request(int signal);
  // When to call check_deadlines next.
  base::Deadline due() const { return std::min(limit_, kill_at_); }
  void check_deadlines();

  bool begun() const { return begun_; }  // after a failure
  int exit_code() const { return exit_code_.value_or(0); }

 private:
  void begin_grace();
  void kill_all(const std::string& why);

  const Plan& plan_;
  const RankProcesses& ranks_;
  RankOutput& output_;
  std::optional<int> exit_code_;  // set by the first failure
  bool begun_ = false;            // the remaining ranks are being ended
  base::Deadline limit_ = base::Deadline::never();
  base::Deadline kill_at_ = base::Deadline::never();              // the end of the grace period
  bool requested_ = false;                                        // the user's signal was forwarded
  base::Deadline second_request_from_ = base::Deadline::never();  // earlier ones are the same request
};

}  // namespace backplane::tool
