// SPDX-License-Identifier: Apache-2.0
//
// The store through which a job's ranks meet. The launcher of node 0 serves it, so it outlives every rank.
#pragma once

#include <functional>
#include <memory>

#include "backplane/backplane.h"
#include "run/rank_environment.hpp"

namespace backplane::tool {

class JobStore {
 public:
  // On node 0 serves the store and fills in the port if it was 0.
  explicit JobStore(Job& job);

  // To be called when this node's ranks have ended. Other nodes tell node 0. Node 0 waits for them, since their ranks
  // may still need the store, for a limited time and until `interrupted`. Returns a sentence if it waited in vain.
  std::string close(const std::function<bool()>& interrupted);

 private:
  struct ReleaseServer {
    void operator()(bp_store_server* server) const { bp_store_server_release(server); }
  };

  void tell() const;
  std::string wait_for_others(const std::function<bool()>& interrupted) const;

  const Job* job_;
  std::unique_ptr<bp_store_server, ReleaseServer> server_;
};

}  // namespace backplane::tool
