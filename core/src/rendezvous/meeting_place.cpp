// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/meeting_place.hpp"

#include <mutex>
#include <string_view>

#include "environment.hpp"
#include "error.hpp"
#include "process.hpp"
#include "store/tcp_address.hpp"

namespace backplane::core {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// A port for `part` of a job (its step, its attempt) that all ranks derive alike.
uint16_t derived_port(int64_t job, int64_t part) {
  constexpr int64_t kFirstPort = 20000;  // up to the usual ports of clients
  constexpr int64_t kPorts = 12000;
  constexpr int64_t kStride = 31;  // so that the parts of one job and those of the next rarely collide
  return static_cast<uint16_t>(kFirstPort + (job * kStride + part) % kPorts);
}

void meet_in_slurm(InitMethod& method) {
  const auto id = [](const char* name) { return parse_number(name, variable(name).value_or("0"), 0, UINT32_MAX); };
  const auto list = variable("SLURM_STEP_NODELIST");
  if (!list) {
    fail(BP_INVALID,
         "MASTER_ADDR is not set, and this process is not in a step of Slurm (SLURM_STEP_NODELIST is not set); start "
         "the ranks by srun, or set MASTER_ADDR and MASTER_PORT");
  }
  method.scheme = InitMethod::Scheme::kTcp;
  method.host = variable("SLURM_STEP_NUM_NODES") == "1" ? kLoopback : first_host(*list);
  method.port = derived_port(id("SLURM_JOB_ID"), id("SLURM_STEP_ID"));
}

struct KnownAddress {
  std::mutex mutex;
  std::string text;
};

KnownAddress& known() {
  static constinit PerProcess<KnownAddress> instance;
  return *instance;
}

}  // namespace

std::string first_host(const std::string& list) {
  std::string host;
  bool in_brackets = false;
  bool skips = false;  // the rest of a range
  for (const char c : list) {
    if (c == ',' && !in_brackets) break;
    if (c == '[' || c == ']') {
      in_brackets = c == '[';
      skips = false;
    } else if (in_brackets && (c == '-' || c == ',')) {
      skips = true;
    } else if (!skips) {
      host += c;
    }
  }
  return host;
}

bool find_meeting_place(LauncherKind launcher, int32_t world_size, InitMethod& method) {
  const std::string size = std::to_string(world_size);
  if (launcher == LauncherKind::kSlurm) {
    meet_in_slurm(method);
    return true;
  }
  if (launcher == LauncherKind::kGeneral) return false;
  const bool is_open_mpi = launcher == LauncherKind::kOpenMpi;
  const bool one_host = is_open_mpi ? variable("OMPI_COMM_WORLD_LOCAL_SIZE") == size
                                    : variable("MPI_LOCALNRANKS") == size || variable("SLURM_STEP_NUM_NODES") == "1";
  const auto directory = trusted_variable("PMIX_SERVER_TMPDIR");
  const auto job = variable("PMIX_NAMESPACE");
  if (is_open_mpi && one_host && directory && job && job->find('/') == std::string::npos) {
    method.scheme = InitMethod::Scheme::kFile;
    method.path = fmt::format("{}/backplane-{}.store", *directory, *job);
    return true;
  }
  method.scheme = InitMethod::Scheme::kExchanged;
  method.host = one_host ? kLoopback : reachable_address();
  return true;
}

void meet_beside_torchrun(int32_t world_size, InitMethod& method) {
  if (variable("LOCAL_WORLD_SIZE") == std::to_string(world_size)) method.host = kLoopback;
  if (const auto own = variable("BACKPLANE_MASTER_PORT")) {
    method.port = parse_port("BACKPLANE_MASTER_PORT", *own);
    return;
  }
  constexpr const char* kAttempt = "TORCHELASTIC_RESTART_COUNT";
  method.port = derived_port(method.port, parse_number(kAttempt, variable(kAttempt).value_or("0"), 0, INT32_MAX));
}

std::string exchange_address(ExchangeVia via, int32_t rank, const std::string& text, const Deadline& deadline) {
  std::string result = via.launcher == LauncherKind::kOpenMpi ? exchange_by_pmix(rank, text, deadline)
                                                              : exchange_by_pmi(rank, text, via.afterwards, deadline);
  if (result.starts_with(kNoStore)) return result;
  const std::lock_guard lock(known().mutex);
  known().text = result;
  return result;
}

std::string exchanged_address() {
  const std::lock_guard lock(known().mutex);
  return known().text;
}

}  // namespace backplane::core
