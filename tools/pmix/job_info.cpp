// SPDX-License-Identifier: Apache-2.0
#include "job_info.hpp"

#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace backplane::pmix {
namespace {

using Text = std::unique_ptr<char, decltype(&std::free)>;

// A list in the form that PMIx_generate_regex or PMIx_generate_ppn makes of it.
Text encoded(pmix_status_t (*encode)(const char*, char**), const std::string& list) {
  char* result = nullptr;
  const pmix_status_t status = encode(list.c_str(), &result);
  if (status != PMIX_SUCCESS) {
    throw std::runtime_error(std::string("PMIx cannot encode the map of the job: ") + PMIx_Error_string(status));
  }
  return {result, &std::free};
}

std::string joined(const std::vector<std::string>& words, char separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(1, separator)) + word;
  return text;
}

std::string ranks_of(const Job& job, uint32_t node) {
  std::vector<std::string> ranks;
  for (uint32_t i = 0; i < job.ranks_per_node; ++i) ranks.push_back(std::to_string(node * job.ranks_per_node + i));
  return joined(ranks, ',');
}

void describe_job(const Job& job, const std::string& directory, Attributes* attributes) {
  std::vector<std::string> ranks;
  for (uint32_t node = 0; node < job.hosts.size(); ++node) ranks.push_back(ranks_of(job, node));
  const Text nodes = encoded(PMIx_generate_regex, joined(job.hosts, ','));
  const Text processes = encoded(PMIx_generate_ppn, joined(ranks, ';'));
  attributes->add_regex(PMIX_NODE_MAP, nodes.get());
  attributes->add_regex(PMIX_PROC_MAP, processes.get());
  attributes->add(PMIX_JOBID, job.name);
  for (const char* const key : {PMIX_JOB_SIZE, PMIX_UNIV_SIZE, PMIX_MAX_PROCS}) attributes->add(key, job.size());
  attributes->add(PMIX_JOB_NUM_APPS, 1);
  attributes->add(PMIX_NUM_NODES, static_cast<uint32_t>(job.hosts.size()));
  attributes->add_flag(PMIX_SPAWNED, false);
  attributes->add(PMIX_LOCAL_SIZE, job.ranks_per_node);
  attributes->add(PMIX_NODE_SIZE, job.ranks_per_node);
  attributes->add(PMIX_LOCAL_PEERS, ranks_of(job, job.node));
  attributes->add_rank(PMIX_LOCALLDR, job.first_rank());
  attributes->add(PMIX_TMPDIR, directory);
  attributes->add(PMIX_NSDIR, directory);
  attributes->add_flag(PMIX_TDIR_RMCLEAN, true);
}

void describe_rank(const Job& job, uint32_t rank, const std::string& directory, Attributes* attributes) {
  const uint32_t node = rank / job.ranks_per_node;
  attributes->add_rank(PMIX_RANK, rank);  // must be the first
  for (const char* const key : {PMIX_GLOBAL_RANK, PMIX_APP_RANK}) attributes->add_rank(key, rank);
  for (const char* const key : {PMIX_LOCAL_RANK, PMIX_NODE_RANK}) {
    attributes->add_short(key, rank % job.ranks_per_node);
  }
  attributes->add(PMIX_APPNUM, uint32_t{0});
  attributes->add(PMIX_NODEID, node);
  attributes->add(PMIX_HOSTNAME, job.hosts[node]);
  if (job.is_local(rank)) attributes->add(PMIX_PROCDIR, directory + "/" + std::to_string(rank));
}

}  // namespace

Attributes::~Attributes() {
  for (pmix_info_t& item : items_) PMIX_INFO_DESTRUCT(&item);
}

void Attributes::load(const char* key, const void* value, pmix_data_type_t type) {
  items_.emplace_back();
  PMIx_Info_load(&items_.back(), key, value, type);
}

void Attributes::add(const char* key, const std::string& text) { load(key, text.c_str(), PMIX_STRING); }
void Attributes::add_regex(const char* key, const char* regex) { load(key, regex, PMIX_REGEX); }
void Attributes::add(const char* key, uint32_t number) { load(key, &number, PMIX_UINT32); }
void Attributes::add_rank(const char* key, uint32_t rank) { load(key, &rank, PMIX_PROC_RANK); }
void Attributes::add_flag(const char* key, bool value) { load(key, &value, PMIX_BOOL); }

void Attributes::add_short(const char* key, uint32_t number) {
  const auto value = static_cast<uint16_t>(number);
  load(key, &value, PMIX_UINT16);
}

void Attributes::add_array(const char* key, const Attributes& members) {
  pmix_data_array_t array = {PMIX_INFO, members.items_.size(), const_cast<pmix_info_t*>(members.items_.data())};
  load(key, &array, PMIX_DATA_ARRAY);  // a deep copy
}

void describe(const Job& job, const std::string& directory, Attributes* attributes) {
  Attributes general;
  describe_job(job, directory, &general);
  attributes->add_array(PMIX_JOB_INFO_ARRAY, general);
  for (uint32_t node = 0; node < job.hosts.size(); ++node) {
    Attributes host;
    host.add(PMIX_HOSTNAME, job.hosts[node]);
    host.add(PMIX_NODEID, node);
    host.add(PMIX_NODE_SIZE, job.ranks_per_node);
    host.add(PMIX_LOCAL_SIZE, job.ranks_per_node);
    host.add(PMIX_LOCAL_PEERS, ranks_of(job, node));
    attributes->add_array(PMIX_NODE_INFO_ARRAY, host);
  }
  for (uint32_t rank = 0; rank < job.size(); ++rank) {
    Attributes process;
    describe_rank(job, rank, directory, &process);
    attributes->add_array(PMIX_PROC_INFO_ARRAY, process);
  }
}

}  // namespace backplane::pmix
