// SPDX-License-Identifier: Apache-2.0
//
// PMIx for the ranks: Open MPI starts in them as one world. The server takes about 50 ms to start. It is therefore
// started only for jobs that need it.
#pragma once

#include <memory>
#include <string>

#include "backplane/base/pmix_server.hpp"
#include "run/rank_environment.hpp"

namespace backplane::tool {

// The path of the program that serves PMIx; empty if it is missing.
std::string pmix_server();

enum class PmixUse {
  kNo,
  kOptional,  // the job may use another MPI
  kRequired
};

// kRequired if the user has `asked` for it. Throws Failure if it cannot be had. kOptional for jobs of the backend mpi.
// kNo for them within a job of another launcher, whose server the inherited variables name.
PmixUse pmix_use(const Job& job, bool asked);

// Null if it is not used, or optional and cannot be had; warns if it should have started. Throws Failure.
std::unique_ptr<base::PmixServer> start_pmix(const Job& job, PmixUse use);

}  // namespace backplane::tool
