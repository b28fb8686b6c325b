// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <string_view>

#include "backplane/base/host.hpp"
#include "common/table.hpp"
#include "doctor/checks.hpp"
#include "doctor/variables.hpp"

namespace backplane::tool {
namespace {

constexpr int64_t kMebi = 1 << 20;
constexpr int64_t kEnoughSharedMemory = 64 * kMebi;  // the default of containers
constexpr int64_t kEnoughFiles = 1024;
constexpr int64_t kEnoughProcesses = 1024;

class HostChecks {
 public:
  HostChecks(const Facts& facts, bool is_alone) : facts_(facts), is_alone_(is_alone) {}

  Findings run() {
    check_name();
    check_interfaces();
    check_shared_memory();
    check_limits();
    check_processors();
    check_debugging();
    check_clock();
    check_store();
    check_rejected_files();
    check_backends();
    check_variables();
    check_chosen_backend("BACKPLANE_BACKEND", ",+");
    check_chosen_backend("BACKPLANE_RPC_BACKEND", ",");
    return std::move(findings_);
  }

 private:
  void add(Severity severity, const char* check, std::string text) {
    findings_.push_back({severity, check, {facts_.host}, std::move(text)});
  }
  // Of faults that concern jobs of several hosts only.
  Severity severity_between_hosts() const { return is_alone_ ? Severity::kNote : Severity::kWarning; }

  void check_name() {
    const auto& addresses = facts_.name_addresses;
    if (addresses.empty()) {
      add(severity_between_hosts(), "host-name",
          "the host's own name does not resolve; add it to the DNS or to /etc/hosts, or use addresses (MASTER_ADDR)");
    } else if (std::all_of(addresses.begin(), addresses.end(), base::is_loopback)) {
      add(severity_between_hosts(), "host-name",
          fmt::format("the host's own name resolves to loopback only ({}), where other hosts cannot reach it; correct "
                      "/etc/hosts, or use addresses (MASTER_ADDR)",
                      addresses.front()));
    }
  }

  void check_interfaces() {
    if (!facts_.interfaces.empty()) return;
    add(severity_between_hosts(), "interfaces",
        "no interface except loopback has an address; configure one for jobs of several hosts");
  }

  void check_shared_memory() {
    if (!facts_.shm_failure.empty()) {
      add(Severity::kWarning, "shm",
          fmt::format(
              "/dev/shm cannot be used ({}), which the backend shm may need; mount a tmpfs there with mode 1777",
              facts_.shm_failure));
    } else if (facts_.shm_free < kEnoughSharedMemory) {
      add(Severity::kWarning, "shm",
          fmt::format("/dev/shm has only {} MiB free, so the backend shm may fail to start; enlarge it (docker run "
                      "--shm-size=1g, or mount -o remount,size=1g /dev/shm)",
                      facts_.shm_free / kMebi));
    }
  }

  static bool is_below(int64_t limit, int64_t enough) { return limit != kUnlimited && limit < enough; }

  void check_limits() {
    if (is_below(facts_.open_files, kEnoughFiles)) {
      add(Severity::kWarning, "limits",
          fmt::format("a process may have {} open files (ulimit -n), and network backends need descriptors for each "
                      "peer; raise the limit to {} or more",
                      facts_.open_files, kEnoughFiles));
    }
    if (is_below(facts_.processes, kEnoughProcesses)) {
      add(Severity::kWarning, "limits",
          fmt::format(
              "this user may have {} processes and threads (ulimit -u), and each rank has several threads; raise "
              "the limit to {} or more",
              facts_.processes, kEnoughProcesses));
    }
    if (facts_.address_space != kUnlimited) {
      add(Severity::kWarning, "limits",
          fmt::format("the address space of a process is limited to {} MiB (ulimit -v), so the backend shm copies more "
                      "data; remove the limit",
                      facts_.address_space / kMebi));
    }
    if (facts_.file_size != kUnlimited) {
      add(Severity::kWarning, "limits",
          fmt::format("the size of files is limited to {} MiB (ulimit -f), which also limits the shared memory of the "
                      "backend shm; remove the limit",
                      facts_.file_size / kMebi));
    }
    if (facts_.core_size == 0) {
      add(Severity::kNote, "limits", "crashes leave no core file (ulimit -c is 0); raise the limit to examine crashes");
    }
  }

  void check_processors() {
    if (facts_.processor_quota <= 0 || facts_.processor_quota >= facts_.processors) return;
    add(Severity::kWarning, "processors",
        fmt::format(
            "the cgroup allows {:.1f} of {} processors and suspends ranks that have used up the quota; raise it "
            "(docker run --cpus), or bind the job to as many processors (taskset)",
            facts_.processor_quota, facts_.processors));
  }

  void check_debugging() {
    if (facts_.ptrace_scope != 0) {
      add(Severity::kNote, "ptrace",
          fmt::format("kernel.yama.ptrace_scope is {}, so debuggers cannot attach to ranks, and the backend shm copies "
                      "large messages twice; set it to 0 if all users of the host are trusted",
                      facts_.ptrace_scope));
    }
    if (!facts_.memory_read_failure.empty()) {
      add(Severity::kNote, "seccomp",
          fmt::format("process_vm_readv fails ({}), so the backend shm copies large messages twice; permit the call in "
                      "the seccomp profile (docker run --cap-add SYS_PTRACE)",
                      facts_.memory_read_failure));
    }
  }

  void check_clock() {
    if (facts_.clock_is_synchronised) return;
    add(Severity::kNote, "clock",
        "the clock is not synchronised by NTP, so traces of several hosts may be merged in a wrong order; run an NTP "
        "client");
  }

  void check_store() {
    if (facts_.store_failure.empty()) return;
    add(Severity::kError, "store", fmt::format("no store can be served: {}", facts_.store_failure));
  }

  void check_rejected_files() {
    for (const RejectedFile& each : facts_.rejected) {
      add(Severity::kWarning, "plugins", fmt::format("{} is not loaded: {}", each.file, each.reason));
    }
  }

  void check_backends() {
    bool has_nccl = false;
    for (const BackendFact& each : facts_.backends) {
      const bool is_nccl = each.id == "nccl";
      has_nccl = has_nccl || is_nccl;
      if (each.viable) continue;
      if (is_nccl && facts_.gpus > 0) {
        add(Severity::kWarning, "gpus",
            fmt::format("the backend nccl is not usable, though the host has GPUs ({}): {}", facts_.gpus, each.remark));
      } else {
        add(Severity::kNote, "plugins", fmt::format("the backend {} is not usable: {}", each.id, each.remark));
      }
    }
    if (has_nccl || facts_.gpus == 0) return;
    add(Severity::kWarning, "gpus",
        fmt::format("the host has GPUs ({}), but the backend nccl is not available; install its plugin, or allow it "
                    "(BACKPLANE_PLUGINS_ALLOW, BACKPLANE_PLUGINS_DENY)",
                    facts_.gpus));
  }

  void check_variables() {
    for (const auto& [name, value] : facts_.environment) {
      const bool is_known = std::find(kVariables.begin(), kVariables.end(), name) != kVariables.end();
      if (is_known || !name.starts_with("BACKPLANE_")) continue;
      add(Severity::kWarning, "environment",
          fmt::format("{} is not a variable of Backplane and is ignored; correct its name, or unset it", name));
    }
  }

  // "gloo?threads=4", one backend for each device: "cpu:gloo,cuda:nccl", or one inside hosts and one between them:
  // "shm+gloo". The values of options have no separators.
  void check_chosen_backend(const char* variable, const char* separators) {
    const auto found = facts_.environment.find(variable);
    if (found == facts_.environment.end()) return;
    const std::string& parts = found->second;
    for (size_t begin = 0; begin < parts.size();) {
      const size_t end = std::min(parts.find_first_of(separators, begin), parts.size());
      const std::string part = parts.substr(begin, end - begin);
      begin = end + 1;
      std::string id = part.substr(0, part.find('?'));
      for (const std::string_view device : {"cpu:", "cuda:"}) {
        if (::strncasecmp(id.c_str(), device.data(), device.size()) == 0) id.erase(0, device.size());
      }
      check_id(variable, id);
    }
  }

  void check_id(const char* variable, const std::string& id) {
    if (id.empty() || ::strcasecmp(id.c_str(), "auto") == 0) return;
    std::vector<std::string> ids;
    for (const BackendFact& each : facts_.backends) {
      if (::strcasecmp(id.c_str(), each.id.c_str()) == 0) return;
      ids.push_back(each.id);
    }
    add(Severity::kError, "environment",
        fmt::format("{} names '{}', which is not available; name one of {}", variable, id, join(ids)));
  }

  const Facts& facts_;
  const bool is_alone_;
  Findings findings_;
};

}  // namespace

Findings host_findings(const Facts& facts, bool is_alone) { return HostChecks(facts, is_alone).run(); }

}  // namespace backplane::tool
