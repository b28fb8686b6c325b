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
  std::shared_ptr<Store> store;  // keys of this round of the job: init, destroy and init again do not mix
  std::shared_ptr<Store> root;   // the same store with the keys of all rounds; null if the caller gave a store
  std::unique_ptr<TcpStoreServer> server;  // set on the rank that hosts it; keep it as long as any rank uses the store
  int32_t rank = -1;
  int32_t world_size = -1;
};

// Reads rank and world size, connects to the store (rank 0 serves it unless a launcher does) and returns. Waits for the
// store's server, not for the other ranks.
//
// env:// reads MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. Where RANK or WORLD_SIZE is not set, what Open MPI, MPICH
// (Hydra) and Slurm export serves instead. An explicit rank or world size wins, then one in the init method. A missing
// variable is BP_INVALID and names it. Further variables:
//   BACKPLANE_JOB_ID           what distinguishes this job from others on the same port; same on all ranks, default ""
//   BACKPLANE_SECRET_FILE, BACKPLANE_SECRET_FD   the job's secret (secret.hpp); same on all ranks and the launcher
//   BACKPLANE_STORE_HOSTED=1   a launcher serves the store at MASTER_ADDR:MASTER_PORT, so that rank 0 must not
//   BACKPLANE_MASTER_PORT      the port to use under torchrun, whose own store occupies MASTER_PORT; without it, a job
//   on
//                              one node meets through a file in the temporary directory
Rendezvous rendezvous(const RendezvousRequest& request);

// Registers this rank under `store` and waits until all `world_size` ranks have done so: BP_TIMEOUT names the missing
// ranks, BP_INVALID a rank that two processes claim (with host and pid of both) or worlds of different sizes (both
// numbers, on every rank). Needs O(1) store calls per rank unless it fails. `identity` is put beside the rank ("host,
// pid 17").
void join(Store& store, int32_t rank, int32_t world_size, const std::string& identity, Deadline deadline);

// Makes all ranks that join under `store`, now or later, fail with BP_INVALID and this sentence: one of them cannot. No
// effect once all have joined. Does not wait for them.
void decline(Store& store, const std::string& why, Deadline deadline);

// Announces that this rank needs the store no longer. The rank that hosts it waits until all others have announced the
// same, at most 5 s and at most until the deadline; so it may destroy the server afterwards. Never fails: a store that
// is gone needs no farewell.
void leave(Rendezvous& meeting, Deadline deadline) noexcept;

}  // namespace backplane::core
