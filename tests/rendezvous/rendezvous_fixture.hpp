// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/rendezvous.hpp"
#include "store/store_fixture.hpp"
#include "support/scoped_log.hpp"

namespace backplane::core {

// Unsets all variables that rendezvous reads.
class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest() {
    for (const char* name : {"MASTER_ADDR",
                             "MASTER_PORT",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "BACKPLANE_STORE",
                             "BACKPLANE_STORE_HOSTED",
                             "BACKPLANE_JOB_ID",
                             "BACKPLANE_MASTER_PORT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_MCA_ess_base_jobid",
                             "PMIX_NAMESPACE",
                             "PMIX_SERVER_TMPDIR",
                             "PMI_FD",
                             "MPI_LOCALNRANKS",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_STEP_NUM_NODES",
                             "PBS_JOBID",
                             "LSB_JOBID",
                             "LSB_JOBINDEX",
                             "JOB_COMPLETION_INDEX",
                             "HOSTNAME"}) {
      environment_.set(name, std::nullopt);
    }
  }

  void set(const std::string& name, const std::string& value) { environment_.set(name, value); }
  void set_master(uint16_t port) {
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(port));
  }
  static RendezvousRequest request(const std::string& init_method = "env://", int32_t rank = -1,
                                   int32_t world_size = -1) {
    return {init_method, rank, world_size, INT64_C(60'000'000'000)};
  }

  ScopedDirectory directory_;
  Environment environment_;
};

}  // namespace backplane::core
