// SPDX-License-Identifier: Apache-2.0
//
// The store of a job. The launcher of node 0 serves it, so it outlives every rank.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backplane/backplane.h"
#include "backplane/base/executor.hpp"
#include "run/rank_environment.hpp"

namespace backplane::tool {

struct ReleaseStore {
  void operator()(bp_store* store) const { bp_store_release(store); }
};
using StorePointer = std::unique_ptr<bp_store, ReleaseStore>;

// Null if node 0 does not serve the store, or no more.
StorePointer connect_to_store(const Job& job);

// The key that exists once all ranks of a node have ended.
std::string ended_key(int node);

class JobStore {
 public:
  // On node 0: serves the store, and sets the port if it was 0. Throws Failure.
  explicit JobStore(Job& job);

  // Reports that the process of a rank has ended. Ranks that wait for it to join then fail. Returns at once. Prints
  // an error if the store refuses the report.
  void report_rank_end(int rank, const std::string& identity, const std::string& reason);

  // Call it when this node's ranks have ended. Other nodes report that to node 0. Node 0 waits for these reports, since
  // ranks there may still use the store, for at most 30 s or until `interrupted`. Returns an error text if one is
  // missing.
  std::string close(const std::function<bool()>& interrupted);

 private:
  struct ReleaseServer {
    void operator()(bp_store_server* server) const { bp_store_server_release(server); }
  };

  void report_node_end() const;
  std::string wait_for_nodes(const std::function<bool()>& interrupted) const;

  const Job* job_;
  std::unique_ptr<bp_store_server, ReleaseServer> server_;
  base::Executor reports_{1};  // node 0 may be slow to answer
};

}  // namespace backplane::tool
