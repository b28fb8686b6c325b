// SPDX-License-Identifier: Apache-2.0
//
// The settings of a job, and the environment of its ranks.
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
  uint16_t master_port = 0;  // of the store; 0: any free port, on one node only
  uint16_t torch_port = 0;   // MASTER_PORT of the ranks, where torch serves a store of its own; 0: that of the store
  std::string job_id;
  std::string backend;  // empty: BACKPLANE_BACKEND is inherited
};

// This process's environment with the variables of one rank, which replace those of an outer launcher: MASTER_ADDR,
// MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK (the node), BACKPLANE_STORE_HOSTED,
// BACKPLANE_JOB_ID and, if the job names one, BACKPLANE_BACKEND; with a port for torch, BACKPLANE_STORE. Also those of
// extra_variables.
// PMI_FD, the number of an inherited descriptor, PMI_RANK and PMI_SIZE are for MPI; not if `pmi_fd` is -1. `pmix`: the
// rank's variables for PMIx. They replace those that an outer `backplane run` has set, even if there are none.
std::vector<std::string> rank_environment(const Job& job, int local_rank, int pmi_fd,
                                          const std::map<std::string, std::string>& pmix);

// If this launcher is a rank of another `backplane run`: the ranks do not inherit its connection to PMI.
void withhold_outer_pmi();

// The variables of BACKPLANE_RANK_ENV, as in "NCCL_HOSTID=host-{rank},NCCL_IB_DISABLE=1". {rank} is replaced by the
// rank.
std::map<std::string, std::string> extra_variables(int rank);
// Warns of words in it that are no assignments.
void check_rank_variables();

inline int global_rank(const Job& job, int local_rank) { return job.node_rank * job.ranks_per_node + local_rank; }

}  // namespace backplane::tool
