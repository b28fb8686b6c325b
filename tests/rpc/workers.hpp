// SPDX-License-Identifier: Apache-2.0
//
// Worlds of workers that are threads of the test.
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
inline std::vector<std::string> own_agents() {
  std::vector<std::string> agents;
#ifdef BACKPLANE_TEST_tensorpipe
  agents.emplace_back("tensorpipe");
#endif
#ifdef BACKPLANE_TEST_zmq
  agents.emplace_back("ZMQ");
#endif
  return agents;
}

// Ways to carry messages: process groups of these backends, or agents with connections of their own.
inline std::vector<std::string> rpc_ways() {
  std::vector<std::string> ways = built_backends();
  for (std::string& agent : own_agents()) ways.push_back(std::move(agent));
  return ways;
}
inline bool is_own_agent(const std::string& way) {
  const std::vector<std::string> agents = own_agents();
  return std::find(agents.begin(), agents.end(), way) != agents.end();
}

// `agent`: options of the agent, "?num_worker_threads=1".
inline rpc::RpcOptions rpc_options(const std::string& way, const Store& store, int rank, int world_size,
                                   const std::string& agent = "") {
  rpc::RpcOptions options;
  const bool own = is_own_agent(way);
  options.backend = (own ? way : "process_group") + agent;
  options.group = own ? "inproc" : way;
  options.store = store;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = std::chrono::seconds(60);
  return options;
}

// Runs body(worker) for each worker and shuts down gracefully. No references may be left.
inline void in_world(const std::string& way, int world_size, const std::function<void(const rpc::Worker&)>& body,
                     const std::string& agent = "") {
  const Store store = Store::inproc();
  on_ranks(world_size, [&](int rank) {
    const rpc::Worker worker = rpc::Worker::join(worker_name(rank), rpc_options(way, store, rank, world_size, agent));
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
