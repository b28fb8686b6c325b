// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a job find each other: an init method and the environment become a store, a rank and a world size.
#pragma once

#include "store/store.hpp"

namespace backplane::core {

struct RendezvousRequest {
  std::string init_method = "env://";  // env:// | tcp://host:port[?rank=R&world_size=W] | file:///path
  int32_t rank = -1;                   // -1: from the init method or the environment
  int32_t world_size = -1;
  int64_t timeout_ns = INT64_C(1800) * 1000000000;
};

struct Rendezvous {
  std::shared_ptr<Store> store;            // keys of this job
  std::unique_ptr<TcpStoreServer> server;  // set on the rank that hosts it; keep it as long as any rank uses the store
  int32_t rank = -1;
  int32_t world_size = -1;
};

// Reads rank and world size, connects to the store (rank 0 serves it unless a launcher does) and returns. Waits for the
// store's server, not for the other ranks.
//
// env:// reads MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, and, where RANK or WORLD_SIZE is not set, what Open MPI, MPICH (Hydra) and
// Slurm export. An explicit rank or world size wins. A missing variable is BP_INVALID and names it.
Rendezvous rendezvous(const RendezvousRequest& request);

// Registers this rank under `store` and waits until all `world_size` ranks have done so: BP_TIMEOUT names the missing
// ranks, BP_INVALID a duplicate rank (with host and pid of the one that came first) or a rank that thinks the world has
// another size. Needs O(1) store calls per rank unless it fails. `identity` is put beside the rank ("host, pid 17").
void join(Store& store, int32_t rank, int32_t world_size, const std::string& identity, Deadline deadline);

// "host, pid 17" of this process.
std::string process_identity();

}  // namespace backplane::core
