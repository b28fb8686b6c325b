// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "backplane/backplane.h"
#include "backplane/base/descriptor.hpp"
#include "backplane/base/host.hpp"
#include "common/failure.hpp"
#include "common/query.hpp"
#include "doctor/variables.hpp"

extern char** environ;

namespace backplane::tool {
namespace {

std::map<std::string, std::string> compared_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    const bool is_compared = std::any_of(kComparedPrefixes.begin(), kComparedPrefixes.end(),
                                         [text](std::string_view prefix) { return text.starts_with(prefix); });
    if (is_compared && equals != std::string_view::npos) {
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return found;
}

void examine_shared_memory(Facts& facts) {
  constexpr const char* kFolder = "/dev/shm";
  struct statvfs space = {};
  if (::statvfs(kFolder, &space) != 0) {
    facts.shm_failure = errno_text(errno);
    return;
  }
  facts.shm_free = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  const base::Descriptor file(::open(kFolder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) facts.shm_failure = errno_text(errno);
}

int64_t soft_limit(__rlimit_resource_t resource) {
  rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return static_cast<int64_t>(limit.rlim_cur);
}

// The file has "max 100000" or "150000 100000": quota and period in us. 0: no quota.
double quota_in(const std::string& path) {
  std::ifstream file(path);
  double quota = 0;
  double period = 0;
  return file >> quota >> period && period > 0 ? quota / period : 0;
}

// The least quota of this process's cgroup (v2) and those above it, in processors; 0: none.
double processor_quota() {
  std::string group;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) group = line.substr(3);
  }
  double least = 0;
  for (std::filesystem::path at = group;; at = at.parent_path()) {
    const double quota = quota_in("/sys/fs/cgroup" + at.string() + "/cpu.max");
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    if (!at.has_relative_path()) return least;
  }
}

int usable_processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// A process may always read its own memory, unless a sandbox refuses the call.
std::string memory_read_failure() {
  int source = 1;
  int target = 0;
  const iovec from = {&source, sizeof source};
  const iovec to = {&target, sizeof target};
  return ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == sizeof source ? "" : errno_text(errno);
}

int yama_scope() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope;
}

bool has_synchronised_clock() {
  timex state = {};
  return ::adjtimex(&state) != TIME_ERROR;
}

int nvidia_devices() {
  int count = 0;
  while (std::filesystem::exists(fmt::format("/dev/nvidia{}", count))) ++count;
  return count;
}

// Serves a store on loopback, which reads the job's secret. Returns why that fails.
std::string store_obstacle() {
  bp_error err;
  bp_error_init(&err);
  bp_store_server* server = nullptr;
  if (bp_store_server_start("127.0.0.1", 0, "", &server, &err) != BP_OK) return err.text;
  bp_store_server_release(server);
  return "";
}

void examine_plugins(Facts& facts) {
  bp_error err;
  bp_error_init(&err);
  char* text = nullptr;
  if (bp_registry_list(nullptr, &text, &err) != BP_OK) throw Failure(kFailed, err.text);
  const std::unique_ptr<char, void (*)(void*)> owner(text, bp_free);
  const nlohmann::json list = nlohmann::json::parse(text);
  for (const nlohmann::json& backend : list["backends"]) {
    if (backend["state"] != "available") continue;
    BackendFact fact;
    fact.id = backend["id"];
    fact.version = backend["version"];
    QueryReply reply = query(kProbe, fact.id, "while probing", kQueryTimeout);
    fact.viable = reply.status == BP_OK;
    fact.remark = std::move(reply.text);
    facts.backends.push_back(std::move(fact));
  }
  for (const nlohmann::json& file : list["rejected"]) facts.rejected.push_back({file["file"], file["reason"]});
}

}  // namespace

Facts collect_facts(int rank, const std::string& store_host, bool whole) {
  Facts facts;
  facts.rank = rank;
  facts.host = base::host_name();
  facts.identity = base::host_identity();
  facts.version = bp_version();
  facts.environment = compared_environment();
  facts.is_whole = whole;
  if (!whole) return facts;
  facts.name_addresses = addresses_of(facts.host);
  facts.interfaces = network_interfaces();
  facts.store_address = store_host.empty() ? "" : address_towards(store_host);
  examine_shared_memory(facts);
  facts.open_files = soft_limit(RLIMIT_NOFILE);
  facts.processes = soft_limit(RLIMIT_NPROC);
  facts.address_space = soft_limit(RLIMIT_AS);
  facts.file_size = soft_limit(RLIMIT_FSIZE);
  facts.core_size = soft_limit(RLIMIT_CORE);
  facts.processors = usable_processors();
  facts.processor_quota = processor_quota();
  facts.memory_read_failure = memory_read_failure();
  facts.ptrace_scope = yama_scope();
  facts.clock_is_synchronised = has_synchronised_clock();
  facts.gpus = nvidia_devices();
  facts.store_failure = store_obstacle();
  examine_plugins(facts);
  return facts;
}

}  // namespace backplane::tool
