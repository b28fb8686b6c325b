// SPDX-License-Identifier: Apache-2.0
#include "rank_environment.hpp"

#include <unistd.h>

#include <map>
#include <string_view>

namespace backplane::tool {

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
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (own.find(text.substr(0, text.find('='))) == own.end()) result.emplace_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

}  // namespace backplane::tool
