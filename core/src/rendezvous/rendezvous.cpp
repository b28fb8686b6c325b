// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/rendezvous.hpp"

#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "environment.hpp"
#include "log.hpp"
#include "rendezvous/address_exchange.hpp"
#include "rendezvous/init_method.hpp"
#include "rendezvous/launcher.hpp"
#include "rendezvous/meeting_place.hpp"
#include "rendezvous/round.hpp"
#include "security/secret.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

int32_t find_rank(const RendezvousRequest& request, const InitMethod& method, const EnvironmentRank& environment) {
  if (request.rank >= 0) return request.rank;
  if (request.rank != -1) fail(BP_INVALID, "rank is {}; give 0 or more, or -1 for the environment's", request.rank);
  if (method.rank) return *method.rank;
  if (environment.rank) return *environment.rank;
  fail(BP_INVALID,
       "no rank is given and RANK is not set; pass rank, set RANK for each process, or start the job with a launcher "
       "(backplane run, torchrun, mpirun, srun)");
}

int32_t find_world_size(const RendezvousRequest& request, const InitMethod& method,
                        const EnvironmentRank& environment) {
  if (request.world_size > 0) return request.world_size;
  if (request.world_size != -1) {
    fail(BP_INVALID, "world_size is {}; give 1 or more, or -1 for the environment's", request.world_size);
  }
  if (method.world_size) return *method.world_size;
  if (environment.world_size) return *environment.world_size;
  fail(BP_INVALID,
       "no world size is given and WORLD_SIZE is not set; pass world_size, set WORLD_SIZE for all processes, or start "
       "the job with a launcher (backplane run, torchrun, mpirun, srun)");
}

std::string required(const char* name, const char* what) {
  if (const auto value = variable(name)) return *value;
  fail(BP_INVALID, "{} is not set; set it to {}, the same for all ranks, or use an init method other than env://", name,
       what);
}

// Replaces env:// by another scheme.
void apply_environment(InitMethod& method, int32_t world_size, LauncherKind launcher) {
  if (const auto store = variable("BACKPLANE_STORE")) {
    parse_address("BACKPLANE_STORE " + quoted(*store), "", *store, method);
    return;
  }
  const bool has_master = variable("MASTER_ADDR") || variable("MASTER_PORT");
  if (!has_master && find_meeting_place(launcher, world_size, method)) return;
  method.host = required("MASTER_ADDR", "the address of the machine on which rank 0 runs");
  const std::string port = required("MASTER_PORT", "a port that is free there");
  method.port = parse_port("MASTER_PORT", port);
  method.scheme = InitMethod::Scheme::kTcp;
  if (variable_is_true("TORCHELASTIC_USE_AGENT_STORE") && !variable_is_true("BACKPLANE_STORE_HOSTED")) {
    meet_beside_torchrun(world_size, method);
  }
}

// Whether a launcher serves the store, which is that of env://; rank 0 serves stores at other ports.
bool is_hosted(const InitMethod& method, bool is_from_environment) {
  if (!variable_is_true("BACKPLANE_STORE_HOSTED")) return false;
  if (is_from_environment) return true;
  const std::string port = std::to_string(method.port);
  if (const auto store = variable("BACKPLANE_STORE")) return store->ends_with(":" + port);
  return variable("MASTER_PORT").value_or(port) == port;
}

// Debian's /etc/hosts maps the name of the host to 127.0.1.1, and not every user of localhost has one host.
void warn_of_loopback(const TcpStoreServer& server, const std::string& host, int32_t world_size) {
  const std::string address = server.address();
  if (!address.starts_with("127.") && !address.starts_with("[::1]")) return;
  const auto local_ranks = variable("LOCAL_WORLD_SIZE");
  const bool has_other_hosts = local_ranks && *local_ranks != std::to_string(world_size);
  const bool is_meant = host == "localhost" || address.starts_with(host) || address.starts_with("[" + host);
  if (is_meant && !has_other_hosts) return;
  log(BP_LOG_WARN,
      "rank 0 serves the store of the job at {} ({}), which only this host can reach; for ranks on other hosts set "
      "MASTER_ADDR or the init method to an address of the network",
      host, address);
}

void serve_store(TcpStoreOptions options, Rendezvous& meeting) {
  options.server_rank = meeting.rank;
  options.closing_key = round_prefix(0) + kDepartedKey;  // a store that a rank hosts serves one round
  options.failure_key = round_prefix(0) + kFailureKey;
  meeting.server = make_tcp_store_server(options);
  warn_of_loopback(*meeting.server, options.host, meeting.world_size);
}

// Exchanges "HOST PORT JOB" of rank 0's store, or kNoStore and the reason.
constexpr size_t kLongestReason = 300;  // bytes

std::string first_exchange(ExchangeVia via, const TcpStoreOptions& options, const Deadline& deadline,
                           Rendezvous& meeting) {
  if (meeting.rank != 0) return exchange_address(via, meeting.rank, {}, deadline);
  std::random_device entropy;
  const std::string id = fmt::format("{}pmi:{:08x}{:08x}", kDerivedJobId, entropy(), entropy());
  TcpStoreOptions own = options;
  own.job_id = own.job_id.empty() ? id : own.job_id;
  try {
    serve_store(own, meeting);
  } catch (const Error& e) {
    try {
      exchange_address(via, 0, std::string(kNoStore) + std::string(e.what()).substr(0, kLongestReason), deadline);
    } catch (const Error&) {
      // The others learn it from the launcher or at their deadline.
    }
    throw;
  }
  return exchange_address(via, 0, fmt::format("{} {} {}", own.host, meeting.server->port(), id), deadline);
}

// Sets host, port and, unless it is given, the job id of rank 0's store, which rank 0 serves.
void exchange_store(ExchangeVia via, TcpStoreOptions& options, const Deadline& deadline, Rendezvous& meeting) {
  std::string text = exchanged_address();
  const bool is_first = text.empty();
  if (is_first) text = first_exchange(via, options, deadline, meeting);
  if (text.starts_with(kNoStore)) fail(BP_PEER_LOST, "rank 0 cannot serve the store: {}", text.substr(kNoStore.size()));
  const std::vector<std::string> parts = split(text, ' ');
  if (parts.size() != 3) fail(BP_INTERNAL, "the launcher returned {} as the address of rank 0", quoted(text));
  options.host = parts[0];
  options.port = parse_port("the port of rank 0", parts[1]);
  if (options.job_id.empty()) options.job_id = parts[2];
  if (!is_first && meeting.rank == 0) serve_store(options, meeting);
}

void connect_store(const InitMethod& method, bool is_hosted, ExchangeVia via, const Deadline& deadline,
                   Rendezvous& meeting) {
  TcpStoreOptions options;
  options.host = method.host;
  options.port = method.port;
  options.job_id = variable("BACKPLANE_JOB_ID").value_or("");
  options.rank = meeting.rank;
  options.secret = environment_secret();
  if (!deadline.infinite()) options.resolve_ns = std::min(options.resolve_ns, deadline.left_ns());
  if (method.scheme == InitMethod::Scheme::kExchanged) {
    exchange_store(via, options, deadline, meeting);
  } else {
    if (options.job_id.empty()) options.job_id = derived_job_id(via.launcher);
    if (meeting.rank == 0 && !is_hosted) serve_store(options, meeting);
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
  const bool is_given = (request.rank != -1 || method.rank) && (request.world_size != -1 || method.world_size);
  const EnvironmentRank environment = is_given ? EnvironmentRank{} : environment_rank();
  meeting.rank = find_rank(request, method, environment);
  meeting.world_size = find_world_size(request, method, environment);
  if (meeting.rank >= meeting.world_size) {
    fail(BP_INVALID, "rank is {}, but the world size is {}; ranks go from 0 to {}", meeting.rank, meeting.world_size,
         meeting.world_size - 1);
  }
  const bool is_from_environment = method.scheme == InitMethod::Scheme::kEnvironment;
  // Slurm's PMI-1 cannot begin again, but Slurm also tells where its ranks can meet without it.
  const bool keeps_slurm = request.keeps_launcher && variable("SLURM_STEP_NODELIST").has_value();
  const bool meets_by_slurm = keeps_slurm && environment.launcher == LauncherKind::kPmi;
  const LauncherKind launcher = meets_by_slurm ? LauncherKind::kSlurm : environment.launcher;
  if (is_from_environment) apply_environment(method, meeting.world_size, launcher);
  const bool has_host = is_hosted(method, is_from_environment);
  meeting.outlives_job = method.scheme == InitMethod::Scheme::kFile || has_host;
  if (method.scheme == InitMethod::Scheme::kFile) {
    meeting.root = make_file_store(method.path);
  } else {
    const Afterwards afterwards = request.keeps_launcher ? Afterwards::kKeep : Afterwards::kEnd;
    connect_store(method, has_host, {launcher, afterwards}, deadline, meeting);
  }
  const int64_t round = meeting.root->add(left_key(meeting.rank), 0, deadline);
  meeting.store = make_prefix_store(meeting.root, round_prefix(round));
  return meeting;
}

}  // namespace backplane::core
