// SPDX-License-Identifier: Apache-2.0
#include "run/pmix.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string_view>

#include "backplane/base/host.hpp"
#include "common/failure.hpp"
#include "common/program.hpp"

namespace backplane::tool {
namespace {

constexpr const char* kServer = "backplane-pmix-server";

bool names_mpi(std::string backend) {  // "mpi", "mpi?native=false", "cpu:mpi,cuda:nccl", "shm+mpi"
  std::replace(backend.begin(), backend.end(), '+', ',');
  std::istringstream list(backend);
  for (std::string each; std::getline(list, each, ',');) {
    const std::string id = each.substr(0, each.find('?'));
    const size_t colon = id.find(':');
    if ((colon == std::string::npos ? id : id.substr(colon + 1)) == "mpi") return true;
  }
  return false;
}

bool uses_mpi(const Job& job) {
  const char* const inherited = std::getenv("BACKPLANE_BACKEND");
  return names_mpi(!job.backend.empty() || inherited == nullptr ? job.backend : inherited);
}

// Jobs of `backplane run` may be nested.
bool is_in_foreign_job() {
  const char* const name = std::getenv("PMIX_NAMESPACE");
  return name != nullptr && !std::string_view(name).starts_with(base::PmixServer::kNamePrefix);
}

}  // namespace

std::string pmix_server() {
  const std::string path = libexec_path(kServer);
  return ::access(path.c_str(), X_OK) == 0 ? path : "";
}

PmixUse pmix_use(const Job& job, bool asked) {
  if (!asked) {
    const bool possible = job.nodes == 1 && !is_in_foreign_job() && !pmix_server().empty();
    return possible && uses_mpi(job) ? PmixUse::kOptional : PmixUse::kNo;
  }
  if (job.nodes > 1) {
    throw Failure(kWrongUse,
                  "--pmix is for jobs on one node; on several, start the ranks with 'mpirun -n N PROGRAM' of Open MPI");
  }
  if (is_in_foreign_job()) {
    throw Failure(kWrongUse,
                  "--pmix cannot be used here: PMIX_NAMESPACE is set by another launcher (mpirun, srun), which serves "
                  "PMIx to this process; unset it, or leave --pmix out");
  }
  if (pmix_server().empty()) {
    throw Failure(kFailed, fmt::format("--pmix needs {}, which is missing; build Backplane with libpmix 4.2 "
                                       "or later installed (Debian: libpmix-dev)",
                                       libexec_path(kServer)));
  }
  return PmixUse::kRequired;
}

std::unique_ptr<base::PmixServer> start_pmix(const Job& job, PmixUse use) {
  if (use == PmixUse::kNo) return nullptr;
  base::PmixServer::Job served;
  served.name = base::PmixServer::random_name();
  served.hosts = {base::host_name()};
  served.ranks_per_host = job.ranks_per_node;
  try {
    return std::make_unique<base::PmixServer>(pmix_server(), served);
  } catch (const std::exception& e) {
    const std::string what = fmt::format("cannot serve PMIx to the ranks: {}", e.what());
    if (use == PmixUse::kRequired) throw Failure(kFailed, what);
    fmt::print(stderr, "backplane: {}; Open MPI will not start in them\n", what);
    return nullptr;
  }
}

}  // namespace backplane::tool
