// SPDX-License-Identifier: Apache-2.0
#include "run/rank_environment.hpp"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>

namespace backplane::tool {
std::map<std::string, std::string> extra_variables(int rank) {
  std::map<std::string, std::string> variables;
  const char* const list = std::getenv("BACKPLANE_RANK_ENV");
  std::istringstream words(list == nullptr ? "" : list);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    std::string value = word.substr(equals + 1);
    constexpr std::string_view kPlace = "{rank}";
    for (size_t at = value.find(kPlace); at != std::string::npos; at = value.find(kPlace, at)) {
      value.replace(at, kPlace.size(), std::to_string(rank));
    }
    variables[word.substr(0, equals)] = value;
  }
  return variables;
}

std::vector<std::string> rank_environment(const Job& job, int local_rank) {
  std::map<std::string, std::string, std::less<>> own = {{"MASTER_ADDR", job.master_addr},
                                                         {"MASTER_PORT", std::to_string(job.master_port)},
                                                         {"RANK", std::to_string(global_rank(job, local_rank))},
                                                         {"WORLD_SIZE", std::to_string(job.nodes * job.ranks_per_node)},
                                                         {"LOCAL_RANK", std::to_string(local_rank)},
                                                         {"LOCAL_WORLD_SIZE", std::to_string(job.ranks_per_node)},
                                                         {"GROUP_RANK", std::to_string(job.node_rank)},
                                                         {"BACKPLANE_STORE_HOSTED", "1"},
                                                         {"BACKPLANE_JOB_ID", job.job_id}};
  if (!job.backend.empty()) own["BACKPLANE_BACKEND"] = job.backend;
  for (const auto& [name, value] : extra_variables(global_rank(job, local_rank))) own[name] = value;
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (own.find(text.substr(0, text.find('='))) == own.end()) result.emplace_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

}  // namespace backplane::tool
