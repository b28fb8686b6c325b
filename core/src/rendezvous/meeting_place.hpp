// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a launcher meet that sets neither MASTER_ADDR nor MASTER_PORT, or a port that is not free.
#pragma once

#include "deadline.hpp"
#include "rendezvous/address_exchange.hpp"
#include "rendezvous/init_method.hpp"
#include "rendezvous/launcher.hpp"

namespace backplane::core {

// Replaces env:// by another scheme, from what the launcher exports:
//   Open MPI   on one host a file in the job's directory, which mpirun removes; else kExchanged over PMIx
//   PMI        kExchanged
//   Slurm      the first host of the step, and a port that is derived from the ids of job and step
// False if the launcher is not one of these.
bool find_meeting_place(LauncherKind launcher, int32_t world_size, InitMethod& method);

// For torchrun, whose agent serves a store of its own at MASTER_PORT: replaces the host, if all ranks are on one, by
// loopback, and the port by BACKPLANE_MASTER_PORT, or else by one that is derived from `method.port` and the attempt.
void meet_beside_torchrun(int32_t world_size, InitMethod& method);

// The first host of a list of Slurm: "n[01-03,7],m1" begins with n01.
std::string first_host(const std::string& list);

struct ExchangeVia {
  LauncherKind launcher = LauncherKind::kPmi;
  Afterwards afterwards = Afterwards::kEnd;  // of PMI-1
};

// For kExchanged: collective, until it has returned the address of a store. Rank 0 gives a text, and all return it.
std::string exchange_address(ExchangeVia via, int32_t rank, const std::string& text, const Deadline& deadline);
// The address that an earlier exchange returned; empty: none has.
std::string exchanged_address();

}  // namespace backplane::core
