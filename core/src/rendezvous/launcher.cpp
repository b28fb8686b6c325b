// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/launcher.hpp"

#include <array>
#include <limits>
#include <string>

#include "environment.hpp"
#include "error.hpp"
#include "log.hpp"
#include "store/store.hpp"

namespace backplane::core {
namespace {

struct Launcher {
  LauncherKind kind;
  const char* rank;
  const char* world_size;
  bool is_inherited = false;  // the shell of an allocation has them as well
};

// In order of preference: what the user, torchrun or `backplane run` sets, Open MPI, MPICH's Hydra (also Intel MPI),
// Slurm.
constexpr std::array<Launcher, 4> kLaunchers{{{LauncherKind::kGeneral, "RANK", "WORLD_SIZE"},
                                              {LauncherKind::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                              {LauncherKind::kPmi, "PMI_RANK", "PMI_SIZE"},
                                              {LauncherKind::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", true}}};

std::optional<int32_t> number(const char* name, int64_t least) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  return static_cast<int32_t>(parse_number(name, *text, least, std::numeric_limits<int32_t>::max()));
}

EnvironmentRank read(const Launcher& launcher) {
  return {number(launcher.rank, 0), number(launcher.world_size, 1), launcher.kind};
}

// "WORLD_SIZE is 1, but OMPI_COMM_WORLD_SIZE is 4", or nothing.
std::string contradiction(const char* name, std::optional<int32_t> value, const char* other, int32_t other_value) {
  if (!value || *value == other_value) return {};
  return fmt::format("{} is {}, but {} is {}", name, *value, other, other_value);
}

std::string contradiction(const Launcher& one, const EnvironmentRank& its, const Launcher& other,
                          const EnvironmentRank& others) {
  const std::string size = contradiction(one.world_size, its.world_size, other.world_size, *others.world_size);
  return size.empty() ? contradiction(one.rank, its.rank, other.rank, *others.rank) : size;
}

// Launchers that export RANK and WORLD_SIZE on purpose, possibly within a job of another launcher.
bool is_set_by_launcher() { return variable("TORCHELASTIC_RUN_ID") || variable_is_true("BACKPLANE_STORE_HOSTED"); }

// "NAME" of a pod with the host name NAME-INDEX, which an indexed job of Kubernetes has.
std::string kubernetes_job() {
  const auto index = variable("JOB_COMPLETION_INDEX");
  const std::string host = variable("HOSTNAME").value_or("");
  const std::string end = "-" + index.value_or("");
  return index && host.size() > end.size() && host.ends_with(end) ? host.substr(0, host.size() - end.size()) : "";
}

// A name and its parts, as "slurm:12.0".
std::string id_text(const char* name, const std::optional<std::string>& id, const std::optional<std::string>& part) {
  constexpr size_t kMostBytes = 200;
  return fmt::format("{}{}:{}{}{}", kDerivedJobId, name, id->substr(0, kMostBytes), part ? "." : "", part.value_or(""));
}

}  // namespace

std::string derived_job_id(LauncherKind launcher) {
  if (launcher == LauncherKind::kOpenMpi) {
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (const auto id = variable(name)) return id_text("openmpi", id, std::nullopt);
    }
  }
  if (const auto run = variable("TORCHELASTIC_RUN_ID"); run && launcher == LauncherKind::kGeneral) {
    return id_text("torchrun", run, variable("TORCHELASTIC_RESTART_COUNT"));
  }
  if (const auto job = variable("SLURM_JOB_ID")) {
    // Ranks that the user numbers may be in several steps.
    const bool is_step = launcher == LauncherKind::kSlurm;
    return id_text("slurm", job, is_step ? variable("SLURM_STEP_ID") : std::nullopt);
  }
  if (const auto job = variable("PBS_JOBID")) return id_text("pbs", job, std::nullopt);
  if (const auto job = variable("LSB_JOBID")) return id_text("lsf", job, variable("LSB_JOBINDEX"));
  const std::string job = kubernetes_job();
  return job.empty() ? "" : id_text("kubernetes", job, std::nullopt);
}

EnvironmentRank environment_rank() {
  const Launcher& general = kLaunchers.front();
  const EnvironmentRank chosen = read(general);
  const bool is_complete = chosen.rank && chosen.world_size;
  for (auto launcher = kLaunchers.begin() + 1; launcher != kLaunchers.end(); ++launcher) {
    if (!variable(launcher->rank) || !variable(launcher->world_size)) continue;
    if (is_complete && (launcher->is_inherited || is_set_by_launcher())) continue;
    const EnvironmentRank its = read(*launcher);
    const std::string problem = contradiction(general, chosen, *launcher, its);
    if (is_complete) {
      if (!problem.empty()) log(BP_LOG_WARN, "{}; using {} and {}", problem, general.rank, general.world_size);
      return chosen;
    }
    if (problem.empty()) return its;
    fail(BP_INVALID, "{}; unset {} and {}, or set both for each process", problem, general.rank, general.world_size);
  }
  if (chosen.rank || chosen.world_size) return chosen;
  for (const Launcher& launcher : kLaunchers) {
    const EnvironmentRank its = read(launcher);
    if (its.rank || its.world_size) return its;
  }
  return {};
}

}  // namespace backplane::core
