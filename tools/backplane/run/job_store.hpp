// SPDX-License-Identifier: Apache-2.0
//
// The store of a job. The launcher of node 0 serves it, so it outlives every rank.
#pragma once

#include <functional>
#include <memory>

#include "backplane/backplane.h"
#include "run/rank_environment.hpp"

namespace backplane::tool {

class JobStore {
 public:
  // On node 0: serves the store, and sets the port if it was 0. Throws Failure.
  explicit JobStore(Job& job);

  // Call it when this node's ranks have ended. Other nodes report that to node 0. Node 0 waits for these reports, since
  // ranks there may still use the store, for at most 30 s or until `interrupted`. Returns an error text if one is
  // missing.
  std::string close(const std::function<bool()>& interrupted);

 private:
  struct ReleaseServer {
    void operator()(bp_store_server* server) const { bp_store_server_release(server); }
  };

  void report_end() const;
  std::string wait_for_nodes(const std::function<bool()>& interrupted) const;

  const Job* job_;
  std::unique_ptr<bp_store_server, ReleaseServer> server_;
};

}  // namespace backplane::tool
