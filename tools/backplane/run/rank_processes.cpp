// SPDX-License-Identifier: Apache-2.0
#include "run/rank_processes.hpp"

#include <optional>
#include <utility>

namespace backplane::tool {

const base::Subprocess& RankProcesses::start(int rank, base::Command command) {
  ranks_.push_back({rank, base::Subprocess::spawn(std::move(command))});
  const base::Subprocess& process = ranks_.back().process;
  if (process && process.exec_error() == 0) ++running_;
  return process;
}

void RankProcesses::signal(int number) const {
  for (const Rank& rank : ranks_) rank.process.signal(number);
}

void RankProcesses::note_ended(const OnEnd& on_end) {
  for (Rank& rank : ranks_) {
    const std::optional<siginfo_t> how = rank.ended ? std::nullopt : rank.process.end();
    if (!how) continue;
    rank.ended = true;
    --running_;
    on_end(rank.number, rank.process.pid(), *how);
  }
}

}  // namespace backplane::tool
