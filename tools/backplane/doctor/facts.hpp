// SPDX-License-Identifier: Apache-2.0
//
// What a process of backplane doctor observes on its host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "doctor/interfaces.hpp"

namespace backplane::tool {

struct BackendFact {
  std::string id;
  std::string version;
  bool viable = false;
  std::string remark;  // of the probe; may be empty
};

struct RejectedFile {
  std::string file;
  std::string reason;
};

constexpr int64_t kUnlimited = -1;

struct Facts {
  int rank = 0;
  std::string host;
  std::string identity;                            // base::host_identity()
  std::string version;                             // of Backplane
  std::map<std::string, std::string> environment;  // kComparedPrefixes

  // The other fields are set by one process per host.
  bool is_whole = false;
  std::vector<std::string> name_addresses;  // to which the host's name resolves
  std::vector<Interface> interfaces;
  std::string store_address;        // from which this host reaches the store; empty: loopback, or no job
  std::string shm_failure;          // why /dev/shm cannot be used
  int64_t shm_free = 0;             // bytes of /dev/shm
  int64_t open_files = kUnlimited;  // this and the next: soft limits of this process
  int64_t processes = kUnlimited;
  int64_t address_space = kUnlimited;  // bytes
  int64_t file_size = kUnlimited;      // bytes
  int64_t core_size = kUnlimited;      // bytes
  int processors = 0;                  // that this process may use
  double processor_quota = 0;          // of the cgroup, in processors; 0: none
  std::string memory_read_failure;     // why process_vm_readv fails even in this process
  int ptrace_scope = 0;                // of Yama
  bool clock_is_synchronised = true;
  int gpus = 0;               // of NVIDIA
  std::string store_failure;  // why no store can be served here, for example because of the job's secret
  std::vector<BackendFact> backends;
  std::vector<RejectedFile> rejected;
};

// Observes this process, and if `whole` also its host. The latter probes each backend in a process of its own, which
// takes seconds.
Facts collect_facts(int rank, const std::string& store_host, bool whole);

}  // namespace backplane::tool
