// SPDX-License-Identifier: Apache-2.0
#include "liveness/process_identity.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>

#include "backplane/base/host.hpp"

namespace backplane::core {

std::string process_identity() { return fmt::format("{}, pid {}", base::host_name(), ::getpid()); }

namespace {

// The pid in the identity of a process of this host, 0 for any other.
pid_t local_pid(const std::string& identity) {
  const std::string prefix = base::host_name() + ", pid ";
  if (identity.compare(0, prefix.size(), prefix) != 0) return 0;
  pid_t pid = 0;
  const auto parsed = std::from_chars(identity.data() + prefix.size(), identity.data() + identity.size(), pid);
  return parsed.ec == std::errc() && pid > 0 ? pid : 0;
}

// The kernel closes the connections of a process before it removes the process: one that it is ending counts as ended.
ProcessState state_of(pid_t pid) {
  constexpr unsigned long kExiting = 4;  // PF_EXITING of the kernel
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) {
    return ::kill(pid, 0) != 0 && errno == ESRCH ? ProcessState::kEnded : ProcessState::kUnknown;
  }
  std::istringstream fields(line.substr(name_end + 1));
  char state = 0;
  long skipped = 0;
  unsigned long flags = 0;
  fields >> state;
  for (int i = 0; i < 5; ++i) fields >> skipped;  // parent, process group, session, terminal, its process group
  fields >> flags;
  const bool ends = state == 'Z' || state == 'X' || (flags & kExiting) != 0;
  return ends ? ProcessState::kEnded : ProcessState::kRuns;
}

}  // namespace

ProcessState process_state(const std::string& identity) {
  const pid_t pid = local_pid(identity);
  return pid == 0 ? ProcessState::kUnknown : state_of(pid);
}

}  // namespace backplane::core
