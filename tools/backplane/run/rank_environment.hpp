// SPDX-License-Identifier: Apache-2.0
//
// What a job is, and what of it each rank sees in its environment.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace backplane::tool {

struct Job {
  int ranks_per_node = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;  // 0: any free port, on one node only
  std::string job_id;
  std::string backend;  // "": BACKPLANE_BACKEND stays as it is
};

// This process's environment with the variables of one rank in place of any that stand there, as they do where a
// launcher runs under another one: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK
// (the node), BACKPLANE_STORE_HOSTED, BACKPLANE_JOB_ID and, if the job names one, BACKPLANE_BACKEND.
// Also those of extra_variables.
std::vector<std::string> rank_environment(const Job& job, int local_rank);

// What BACKPLANE_RANK_ENV adds, as in "NCCL_HOSTID=host-{rank},NCCL_IB_DISABLE=1": variables that differ between ranks;
// {rank} stands for the rank's number.
std::map<std::string, std::string> extra_variables(int rank);

inline int global_rank(const Job& job, int local_rank) { return job.node_rank * job.ranks_per_node + local_rank; }

}  // namespace backplane::tool
