// SPDX-License-Identifier: Apache-2.0
//
// The processes of the ranks. An ended one is reaped by clear, so that no signal reaches a process group with a reused
// id.
#pragma once

#include <functional>
#include <vector>

#include "backplane/base/subprocess.hpp"

namespace backplane::tool {

class RankProcesses {
 public:
  using OnEnd = std::function<void(int rank, pid_t pid, const siginfo_t& how)>;

  // Starts a rank. The caller checks the process, as after Subprocess::spawn.
  const base::Subprocess& start(int rank, base::Command command);
  int running() const { return running_; }
  // To the process groups of all ranks, also of those that have ended.
  void signal(int number) const;
  // Reports the ranks that have ended since the last call.
  void note_ended(const OnEnd& on_end);
  void clear() { ranks_.clear(); }

 private:
  struct Rank {
    int number;
    base::Subprocess process;
    bool ended = false;
  };

  std::vector<Rank> ranks_;
  int running_ = 0;
};

}  // namespace backplane::tool
