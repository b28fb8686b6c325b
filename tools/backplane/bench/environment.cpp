// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backplane/backplane.h"
#include "bench/report.hpp"
#include "common/files.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string own_command_line() {
  std::istringstream words(read_file("/proc/self/cmdline"));
  std::string line = "backplane";
  std::string word;
  std::getline(words, word, '\0');  // the path of this program
  while (std::getline(words, word, '\0')) line += " " + shell_quoted(word);
  return line;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

int usable_cores() {
  cpu_set_t allowed;
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

// The registry knows the version of each plugin file without running its code.
std::string plugin_version(const nlohmann::json& backends, const std::string& id) {
  for (const auto& backend : backends) {
    if (backend["id"] == id) return backend["version"];
  }
  return "";
}

}  // namespace

Environment read_environment(const std::vector<std::string>& backends) {
  Environment made;
  made.date = utc_now();
  made.command = own_command_line();
  made.host = host_name();
  utsname system{};
  if (::uname(&system) == 0) made.system = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  made.cpu = cpu_model();
  made.cores = usable_cores();
  const double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  made.memory_gib = std::round(bytes / (1 << 30) * 10) / 10;
  made.libraries = {{"backplane", bp_version()}, {"libc", ::gnu_get_libc_version()}};
  char* text = nullptr;
  if (bp_registry_list(nullptr, &text, nullptr) != BP_OK) return made;
  const std::unique_ptr<char, void (*)(void*)> owner(text, bp_free);
  const auto list = nlohmann::json::parse(text);
  for (const std::string& backend : backends) {
    const std::string id = backend.substr(0, backend.find_first_of("? "));
    const std::string version = plugin_version(list["backends"], id);
    const std::pair<std::string, std::string> entry(id, version);
    const bool known = std::find(made.libraries.begin(), made.libraries.end(), entry) != made.libraries.end();
    if (!version.empty() && !known) made.libraries.push_back(entry);
  }
  return made;
}

}  // namespace backplane::tool
