// SPDX-License-Identifier: Apache-2.0
//
// PMI-1 for the ranks of this node: MPICH, Intel MPI and their descendants start in them as one world. The launchers of
// several nodes exchange what their ranks put through the job's store.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "backplane/backplane.h"
#include "backplane/base/event_fd.hpp"
#include "backplane/base/executor.hpp"
#include "backplane/base/pmi_server.hpp"
#include "run/rank_environment.hpp"

namespace backplane::tool {

class PmiService {
 public:
  explicit PmiService(const Job& job);
  ~PmiService();
  PmiService(const PmiService&) = delete;
  PmiService& operator=(const PmiService&) = delete;

  // The rank's end of its connection, which it inherits. The caller closes it once the rank has it.
  base::Descriptor connect(int local_rank) { return server_.connect(local_rank); }

  // Events to poll for. serve: handles them.
  std::array<pollfd, 2> interest() const { return {pollfd{server_.fd(), POLLIN, 0}, {exchanged_.get(), POLLIN, 0}}; }
  void serve();

 private:
  using Values = base::PmiServer::Values;

  void exchange(const Values& own);
  Values exchange_through_store(const Values& own);
  Values wait_for(bp_store* store, const std::string& key, int node) const;

  const Job& job_;
  base::PmiServer server_;
  base::EventFd exchanged_;
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::optional<Values> received_;
  bool failed_ = false;
  uint64_t round_ = 0;
  base::Executor exchanges_{1};
};

}  // namespace backplane::tool
