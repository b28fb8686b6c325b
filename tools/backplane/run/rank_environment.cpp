// SPDX-License-Identifier: Apache-2.0
#include "run/rank_environment.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>

#include "backplane/base/pmix_server.hpp"
#include "backplane/base/subprocess.hpp"
#include "common/table.hpp"

namespace backplane::tool {

namespace {

std::vector<std::string> rank_words() {
  const char* const list = std::getenv("BACKPLANE_RANK_ENV");
  std::istringstream text(list == nullptr ? "" : list);
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

bool have_equal_values(const char* left, const char* right) {
  const char* const a = std::getenv(left);
  const char* const b = std::getenv(right);
  return a != nullptr && b != nullptr && std::string_view(a) == b;
}

// Whether this launcher is a rank of another `backplane run` that serves PMI-1.
bool has_outer_pmi() {
  return std::getenv("BACKPLANE_STORE_HOSTED") != nullptr && std::getenv("PMI_FD") != nullptr &&
         have_equal_values("PMI_RANK", "RANK") && have_equal_values("PMI_SIZE", "WORLD_SIZE");
}

// If this launcher is a rank of another `backplane run`, these variables name that rank, not those of this job.
bool names_outer_rank(std::string_view variable) {
  if (variable == "PMI_FD" || variable == "PMI_RANK" || variable == "PMI_SIZE") return has_outer_pmi();
  const char* const job = std::getenv("PMIX_NAMESPACE");
  if (job == nullptr || !std::string_view(job).starts_with(base::PmixServer::kNamePrefix)) return false;
  return variable == "JSM_JSRUN_PORT" || (variable.starts_with("PMIX_") && !variable.starts_with("PMIX_MCA_"));
}

bool is_assignment(const std::string& word) {
  const size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0;
}

}  // namespace

void check_rank_variables() {
  for (const std::string& word : rank_words()) {
    if (is_assignment(word)) continue;
    fmt::print(stderr, "backplane: BACKPLANE_RANK_ENV has '{}'; it must be NAME=VALUE,... Ignoring it\n",
               printable(word));
  }
}

std::map<std::string, std::string> extra_variables(int rank) {
  std::map<std::string, std::string> variables;
  for (const std::string& word : rank_words()) {
    if (!is_assignment(word)) continue;
    const size_t equals = word.find('=');
    std::string value = word.substr(equals + 1);
    constexpr std::string_view kPlace = "{rank}";
    for (size_t at = value.find(kPlace); at != std::string::npos; at = value.find(kPlace, at)) {
      value.replace(at, kPlace.size(), std::to_string(rank));
    }
    variables[word.substr(0, equals)] = value;
  }
  return variables;
}

void withhold_outer_pmi() {
  if (has_outer_pmi()) ::fcntl(std::atoi(std::getenv("PMI_FD")), F_SETFD, FD_CLOEXEC);
}

std::vector<std::string> rank_environment(const Job& job, int local_rank, int pmi_fd,
                                          const std::map<std::string, std::string>& pmix) {
  std::map<std::string, std::string> own = {{"MASTER_ADDR", job.master_addr},
                                            {"MASTER_PORT", std::to_string(job.master_port)},
                                            {"RANK", std::to_string(global_rank(job, local_rank))},
                                            {"WORLD_SIZE", std::to_string(job.nodes * job.ranks_per_node)},
                                            {"LOCAL_RANK", std::to_string(local_rank)},
                                            {"LOCAL_WORLD_SIZE", std::to_string(job.ranks_per_node)},
                                            {"GROUP_RANK", std::to_string(job.node_rank)},
                                            {"BACKPLANE_STORE_HOSTED", "1"},
                                            {"BACKPLANE_JOB_ID", job.job_id}};
  if (job.torch_port != 0) {
    const bool is_ipv6 = job.master_addr.find(':') != std::string::npos;
    own["BACKPLANE_STORE"] = fmt::format(fmt::runtime(is_ipv6 ? "[{}]:{}" : "{}:{}"), job.master_addr, job.master_port);
    own["MASTER_PORT"] = std::to_string(job.torch_port);
  }
  if (pmi_fd >= 0) {
    own["PMI_FD"] = std::to_string(pmi_fd);
    own["PMI_RANK"] = own["RANK"];
    own["PMI_SIZE"] = own["WORLD_SIZE"];
  }
  own.insert(pmix.begin(), pmix.end());
  // MPICH 5 ends if it finds PMI-1 and PMIx and no choice.
  if (pmi_fd >= 0 && !pmix.empty() && std::getenv("MPIR_CVAR_PMI_VERSION") == nullptr) {
    own["MPIR_CVAR_PMI_VERSION"] = "1";
  }
  if (!job.backend.empty()) own["BACKPLANE_BACKEND"] = job.backend;
  for (const auto& [name, value] : extra_variables(global_rank(job, local_rank))) own[name] = value;
  std::vector<std::string> environment = base::environment_with(own);
  std::erase_if(environment, [&own](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('='));
    return (names_outer_rank(name) || name == "BACKPLANE_STORE") && own.count(name) == 0;
  });
  return environment;
}

}  // namespace backplane::tool
