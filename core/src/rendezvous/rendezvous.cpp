// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/rendezvous.hpp"

#include <unistd.h>

#include <cctype>
#include <utility>

#include "environment.hpp"
#include "rendezvous/init_method.hpp"
#include "rendezvous/launcher.hpp"
#include "rendezvous/round.hpp"
#include "security/secret.hpp"

namespace backplane::core {
namespace {

int32_t find_rank(const RendezvousRequest& request, const InitMethod& method) {
  if (request.rank >= 0) return request.rank;
  if (request.rank != -1) fail(BP_INVALID, "rank is {}; give 0 or more, or -1 for the environment's", request.rank);
  if (method.rank) return *method.rank;
  if (const auto rank = environment_rank()) return *rank;
  fail(BP_INVALID,
       "no rank is given and RANK is not set; pass rank, set RANK for each process, or start the job with a launcher "
       "(backplane run, torchrun, mpirun, srun)");
}

int32_t find_world_size(const RendezvousRequest& request, const InitMethod& method) {
  if (request.world_size > 0) return request.world_size;
  if (request.world_size != -1) {
    fail(BP_INVALID, "world_size is {}; give 1 or more, or -1 for the environment's", request.world_size);
  }
  if (method.world_size) return *method.world_size;
  if (const auto world_size = environment_world_size()) return *world_size;
  fail(BP_INVALID,
       "no world size is given and WORLD_SIZE is not set; pass world_size, set WORLD_SIZE for all processes, or start "
       "the job with a launcher (backplane run, torchrun, mpirun, srun)");
}

// The file store of a job on one node under torchrun, whose own store uses MASTER_PORT.
std::string torchrun_path(const std::string& port) {
  std::string run;
  for (const char c : variable("TORCHELASTIC_RUN_ID").value_or("none").substr(0, 100)) {
    run += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ? c : '_';
  }
  return fmt::format(
      "{}/backplane-{}-{}-{}-{}.store", variable("TMPDIR").value_or("/tmp"), ::geteuid(), run,
      parse_number("TORCHELASTIC_RESTART_COUNT", variable("TORCHELASTIC_RESTART_COUNT").value_or("0"), 0, INT32_MAX),
      port);
}

std::string required(const char* name, const char* what) {
  if (const auto value = variable(name)) return *value;
  fail(BP_INVALID, "{} is not set; set it to {}, the same for all ranks, or use an init method other than env://", name,
       what);
}

// Replaces env:// by another scheme.
void apply_environment(InitMethod& method, int32_t world_size) {
  method.host = required("MASTER_ADDR", "the address of the machine on which rank 0 runs");
  const std::string port = required("MASTER_PORT", "a port that is free there");
  method.port = parse_port("MASTER_PORT", port);
  method.scheme = InitMethod::Scheme::kTcp;
  if (!variable_is_true("TORCHELASTIC_USE_AGENT_STORE") || variable_is_true("BACKPLANE_STORE_HOSTED")) return;
  if (const auto own = variable("BACKPLANE_MASTER_PORT")) {
    method.port = parse_port("BACKPLANE_MASTER_PORT", *own);
  } else if (variable("LOCAL_WORLD_SIZE") == std::to_string(world_size)) {
    method.scheme = InitMethod::Scheme::kFile;
    method.path = torchrun_path(port);
  } else {
    fail(BP_INVALID,
         "torchrun uses port {} for a store of its own; set BACKPLANE_MASTER_PORT to a free port of {}, the same for "
         "all ranks",
         port, method.host);
  }
}

void connect_store(const InitMethod& method, const Deadline& deadline, Rendezvous& meeting) {
  TcpStoreOptions options;
  options.host = method.host;
  options.port = method.port;
  options.job_id = variable("BACKPLANE_JOB_ID").value_or("");
  options.rank = meeting.rank;
  options.secret = environment_secret();
  if (meeting.rank == 0 && !variable_is_true("BACKPLANE_STORE_HOSTED")) {
    options.server_rank = meeting.rank;
    options.closing_key = round_prefix(0) + kDepartedKey;  // a store that a rank hosts serves one round
    meeting.server = make_tcp_store_server(options);
  }
  // The server does not get the world size: join() compares it and reports it on all ranks.
  options.world_size = meeting.world_size;
  meeting.root = make_tcp_store(options, deadline);
}

}  // namespace

Rendezvous rendezvous(const RendezvousRequest& request) {
  const Deadline deadline = Deadline::after(request.timeout_ns);
  InitMethod method = parse_init_method(request.init_method);
  Rendezvous meeting;
  meeting.rank = find_rank(request, method);
  meeting.world_size = find_world_size(request, method);
  if (meeting.rank >= meeting.world_size) {
    fail(BP_INVALID, "rank is {}, but the world size is {}; ranks go from 0 to {}", meeting.rank, meeting.world_size,
         meeting.world_size - 1);
  }
  if (method.scheme == InitMethod::Scheme::kEnvironment) apply_environment(method, meeting.world_size);
  if (method.scheme == InitMethod::Scheme::kFile) {
    meeting.root = make_file_store(method.path);
  } else {
    connect_store(method, deadline, meeting);
  }
  const int64_t round = meeting.root->add(left_key(meeting.rank), 0, deadline);
  meeting.store = make_prefix_store(meeting.root, round_prefix(round));
  return meeting;
}

}  // namespace backplane::core
