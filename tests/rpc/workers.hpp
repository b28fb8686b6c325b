// SPDX-License-Identifier: Apache-2.0
//
// Workers on threads of the test.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backplane/rpc.hpp"
#include "support/groups.hpp"

namespace backplane::test {

inline std::string worker_name(int rank) { return "worker" + std::to_string(rank); }

// Agents with connections of their own.
inline std::vector<std::string> agents_with_connections() {
  std::vector<std::string> agents;
#ifdef BACKPLANE_TEST_tensorpipe
  agents.emplace_back("tensorpipe");
#endif
#ifdef BACKPLANE_TEST_zmq
  agents.emplace_back("ZMQ");
#endif
  return agents;
}

// The transports to test: process groups of each backend, and agents with connections of their own.
inline std::vector<std::string> rpc_transports() {
  std::vector<std::string> transports = built_backends();
  for (std::string& agent : agents_with_connections()) transports.push_back(std::move(agent));
  return transports;
}
inline bool has_own_connections(const std::string& transport) {
  const std::vector<std::string> agents = agents_with_connections();
  return std::find(agents.begin(), agents.end(), transport) != agents.end();
}

// `agent`: options of the agent, such as "?num_worker_threads=1".
inline rpc::RpcOptions rpc_options(const std::string& transport, const Store& store, int rank, int world_size,
                                   const std::string& agent = "") {
  rpc::RpcOptions options;
  const bool own = has_own_connections(transport);
  options.backend = (own ? transport : "process_group") + agent;
  options.group = own ? "inproc" : transport;
  options.store = store;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = std::chrono::seconds(60);
  return options;
}

// Runs body(worker) for each worker and shuts down gracefully. No references may be left.
inline void in_world(const std::string& transport, int world_size, const std::function<void(const rpc::Worker&)>& body,
                     const std::string& agent = "") {
  const Store store = Store::inproc();
  on_ranks(world_size, [&](int rank) {
    const rpc::Worker worker =
        rpc::Worker::join(worker_name(rank), rpc_options(transport, store, rank, world_size, agent));
    try {
      body(worker);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << rank << ": " << e.what();
    }
    // Pending calls may take minutes under sanitizers on a busy machine.
    EXPECT_EQ(worker.shutdown(true, std::chrono::seconds(240)), std::vector<std::string>());
  });
}

}  // namespace backplane::test
