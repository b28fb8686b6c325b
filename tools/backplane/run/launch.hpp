// SPDX-License-Identifier: Apache-2.0
//
// Runs the ranks of one node: forwards output and signals, and ends all ranks when one fails.
#pragma once

#include <chrono>
#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backplane/base/subprocess.hpp"
#include "run/guard.hpp"
#include "run/line_relay.hpp"
#include "run/output.hpp"
#include "run/pmi_service.hpp"
#include "run/pmix.hpp"
#include "run/rank_environment.hpp"
#include "run/signals.hpp"
#include "run/stdin_relay.hpp"

namespace backplane::tool {

struct Plan {
  std::string path;
  std::vector<std::string> arguments;  // the program's name first
  std::optional<std::chrono::nanoseconds> timeout;
  std::chrono::nanoseconds grace{};  // between SIGTERM and SIGKILL
  bool prefix = false;               // prefix each line of output with its rank
  int output = 1;                    // standard output of ranks without a prefix
  int inherited = -1;                // a descriptor that the ranks inherit; -1 for none
  bool keep_going = false;           // a failed rank does not end the others
  bool offers_pmi = true;            // MPICH and Intel MPI may start in the ranks
  PmixUse pmix = PmixUse::kNo;       // Open MPI may
};

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
  struct Rank {
    int number;
    base::Subprocess process;
    bool ended = false;  // reaped after all have ended, so that its process group id is not reused
  };

  void raise_descriptor_limit();
  void start_rank(int local_rank);
  void print(const std::string& sentence);
  bool done() const;
  void wait_and_serve();
  void check_deadlines();
  void handle(int signal);
  void note_ended_ranks();
  void check_exit(const Rank& rank, const siginfo_t& how);
  void begin_end(int exit_code, const std::string& why);
  void finish_outputs();
  void signal_all(int signal) const;
  void kill_all(const std::string& why);
  void stop_until_resumed();

  const Job& job_;
  const Plan& plan_;
  Signals& signals_;
  Guard& guard_;
  const OnRankEnd on_rank_end_;
  timespec started_ = {};
  rlimit descriptor_limit_ = {};  // of the ranks: that of this process before it raised its own
  Output out_{1};
  Output err_{2};
  StdinRelay input_;
  PmiService pmi_;
  const std::unique_ptr<base::PmixServer> pmix_;  // may be null
  std::vector<Rank> ranks_;
  std::deque<LineRelay> relays_;
  size_t running_ = 0;
  std::optional<int> exit_code_;                                 // set by the first failure
  base::Deadline limit_ = base::Deadline::never();               // of --timeout
  base::Deadline kill_at_ = base::Deadline::never();             // the end of the grace period
  bool ending_ = false;                                          // the remaining ranks are being ended
  bool forwarded_end_ = false;                                   // SIGINT, SIGTERM or SIGHUP was forwarded
  base::Deadline second_signal_from_ = base::Deadline::never();  // earlier ones are the same request
};

}  // namespace backplane::tool
