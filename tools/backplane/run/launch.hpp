// SPDX-License-Identifier: Apache-2.0
//
// Runs the ranks of one node to their end: output, signals, the first failure, the end of all others.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "run/guard.hpp"
#include "run/line_relay.hpp"
#include "run/output.hpp"
#include "run/rank_environment.hpp"
#include "run/signals.hpp"
#include "run/stdin_relay.hpp"

namespace backplane::tool {

struct Plan {
  std::string path;
  std::vector<std::string> arguments;  // the program's name first
  std::optional<std::chrono::nanoseconds> timeout;
  std::chrono::nanoseconds grace{};  // between SIGTERM and SIGKILL
  bool prefix = false;               // each line of output begins with its rank
  int output = 1;                    // what becomes standard output of ranks whose lines have no prefix
  int inherited = -1;                // a descriptor that each rank gets under its number, -1: none
  bool keep_going = false;           // a rank that fails does not end the others
};

class Launch {
 public:
  using Clock = std::chrono::steady_clock;

  Launch(const Job& job, const Plan& plan, Signals& signals, Guard& guard);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Returns the exit code: 0 if all ranks ended well.
  int run();

 private:
  struct Rank {
    int number;
    pid_t pid;
    bool ended = false;  // not reaped before all have ended, so that its group's number stays its own
  };

  void start_rank(int local_rank);
  void say(const std::string& sentence);
  bool done() const;
  void wait_and_serve();
  int poll_timeout() const;
  void check_deadlines();
  void handle(int signal);
  void note_ended_ranks();
  void judge(const Rank& rank, const siginfo_t& how);
  void begin_end(int exit_code, const std::string& why);
  void finish_outputs();
  void signal_all(int signal) const;

  const Job& job_;
  const Plan& plan_;
  Signals& signals_;
  Guard& guard_;
  Output out_{1};
  Output err_{2};
  StdinRelay input_;
  Descriptor null_;
  std::vector<Rank> ranks_;
  std::deque<LineRelay> relays_;
  size_t running_ = 0;
  std::optional<int> verdict_;              // the exit code, once something has failed
  std::optional<Clock::time_point> limit_;  // of --timeout
  std::optional<Clock::time_point> kill_at_;
  bool ending_ = false;       // the ranks that are left are being ended
  bool told_to_end_ = false;  // a signal that ends programs was forwarded
  int interrupts_ = 0;
};

}  // namespace backplane::tool
