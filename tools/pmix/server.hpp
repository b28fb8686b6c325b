// SPDX-License-Identifier: Apache-2.0
//
// The PMIx server of one job on this node. libpmix has one per process, and a thread of its own that calls back.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "job_info.hpp"

namespace backplane::pmix {

class Server {
 public:
  // Starts to listen. `directory` holds temporary files and exists. Throws std::runtime_error.
  Server(Job job, const std::string& directory);
  // Removes the files that ranks have registered, and disconnects those that are left.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The variables that a rank needs in its environment, as "NAME=VALUE".
  std::vector<std::string> environment(uint32_t rank) const;

  // Whether the rank has connected, even if it is connected no more.
  bool has_connected(uint32_t rank) const;

 private:
  const Job job_;
};

}  // namespace backplane::pmix
