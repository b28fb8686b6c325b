// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous of the ranks of a job: turns an init method and the environment into a store, a rank and a world size.
#pragma once

#include "store/store.hpp"

namespace backplane::core {

struct RendezvousRequest {
  std::string init_method = "env://";  // env:// | tcp://host:port[?rank=R&world_size=W] | file:///path
  int32_t rank = -1;                   // -1: from the init method or the environment
  int32_t world_size = -1;
  int64_t timeout_ns = INT64_C(1800) * 1000000000;
  bool keeps_launcher = false;  // the launcher's connection (PMI_FD) stays open, for a backend that uses it, too
};

struct Rendezvous {
  std::shared_ptr<Store> store;  // keys of this round of the job, see round.hpp
  std::shared_ptr<Store> root;   // the same store with the keys of all rounds; null if the caller gave a store
  std::unique_ptr<TcpStoreServer> server;  // on the rank that hosts it; must live while any rank uses the store
  bool outlives_job = false;               // the store: a file, or served by a launcher
  int32_t rank = -1;
  int32_t world_size = -1;
};

// Reads rank and world size, connects to the store (rank 0 serves it unless a launcher does) and returns. Waits for the
// store's server, not for the other ranks.
//
// env:// reads MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. Without RANK and WORLD_SIZE it uses the variables of Open
// MPI, MPICH (Hydra) or Slurm. Rank and size come from the same launcher (launcher.hpp). Without MASTER_ADDR and
// MASTER_PORT, the ranks of such a launcher meet through what it offers (meeting_place.hpp). An explicit rank or world
// size takes precedence over one in the init method, which takes precedence over variables. BP_INVALID names a missing
// variable. Further variables:
//   BACKPLANE_JOB_ID           distinguishes jobs on the same port; the same on all ranks. By default derived from the
//                              variables of the launcher or the batch system (derived_job_id)
//   BACKPLANE_SECRET_FILE, BACKPLANE_SECRET_FD   the job's secret (secret.hpp); the same on all ranks and the launcher
//   BACKPLANE_STORE            HOST:PORT of the store, if another library occupies MASTER_PORT
//   BACKPLANE_STORE_HOSTED=1   a launcher serves the store of env://; rank 0 must not
//   BACKPLANE_MASTER_PORT      the port under torchrun, whose own store uses MASTER_PORT; without it, a job on one node
//                              uses a file in the temporary directory
Rendezvous rendezvous(const RendezvousRequest& request);

// Registers this rank in `store` and waits until all `world_size` ranks have done so. BP_TIMEOUT names the missing
// ranks; BP_INVALID names a rank that two processes claim, or the different world sizes, on every rank. O(1) store
// calls per rank unless it fails. `identity` ("host, pid 17") is for messages.
void join(Store& store, int32_t rank, int32_t world_size, const std::string& identity, Deadline deadline);

// In the store of a join: exists once it has succeeded or failed.
inline constexpr const char* kJoinedKey = "bp/join/outcome";

// Makes all ranks that join in `store`, now or later, fail with BP_INVALID and this text, because a rank cannot join.
// Returns false, without effect, once all have joined. Does not wait for them.
bool decline(Store& store, const std::string& why, Deadline deadline);

// For a launcher: makes the ranks that wait for `rank` to join fail with its loss, since its process has ended. `root`:
// the store without the prefix of a round. `reason` ends the notice. No effect if the rank has joined this round.
void report_end(Store& root, int32_t rank, const std::string& identity, const std::string& reason, Deadline deadline);

// Announces that this rank no longer needs the store. The rank that hosts it waits until each of the others has
// announced the same or is reported lost, at most until the deadline, and may then destroy the server. Ignores failures
// of the store. `failure` (empty: none): why the job did not start; the server refuses ranks that connect late with it.
void leave(Rendezvous& meeting, Deadline deadline, const std::string& failure = {}) noexcept;

}  // namespace backplane::core
