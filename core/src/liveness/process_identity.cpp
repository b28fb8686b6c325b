// SPDX-License-Identifier: Apache-2.0
#include "liveness/process_identity.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>

namespace backplane::core {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

}  // namespace

std::string process_identity() { return fmt::format("{}, pid {}", host_name(), ::getpid()); }

bool has_ended(const std::string& identity) {
  const std::string prefix = host_name() + ", pid ";
  if (identity.compare(0, prefix.size(), prefix) != 0) return false;
  pid_t pid = 0;
  const auto parsed = std::from_chars(identity.data() + prefix.size(), identity.data() + identity.size(), pid);
  return parsed.ec == std::errc() && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace backplane::core
