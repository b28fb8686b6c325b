// SPDX-License-Identifier: Apache-2.0
#include "bench/peers.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "backplane/base/subprocess.hpp"
#include "common/failure.hpp"
#include "common/program.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOpenMpi = "openmpi";
constexpr const char* kMpich = "mpich";
constexpr const char* kGloo = "raw-gloo";
constexpr const char* kTorch = "torch";
constexpr std::chrono::nanoseconds kImportTime = std::chrono::seconds(60);  // of torch, from a slow disk

std::string driver(const std::string& peer, const std::string& file, const std::string& needs) {
  const std::string path = libexec_path(file);
  std::error_code error;
  if (fs::exists(path, error)) return path;
  throw Failure(kNotFound,
                fmt::format("the driver of {} is missing at {}; build Backplane with {} installed", peer, path, needs));
}

std::string installed(const std::string& program, const std::string& package) {
  try {
    return find_program(program);
  } catch (const Failure&) {
    throw Failure(kNotFound, fmt::format("{} is not installed (Debian: {})", program, package));
  }
}

int cores() {
  cpu_set_t allowed;
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

void require_module(const std::string& python) {
  constexpr int kNullDevice = base::Command::kNullDevice;
  base::Subprocess child = base::Subprocess::spawn(
      {.path = python,
       .arguments = {python, "-c", "import torch.distributed as d; raise SystemExit(not d.is_gloo_available())"},
       .descriptors = {{0, kNullDevice}, {1, kNullDevice}, {2, kNullDevice}}});
  if (child) child.wait(base::Deadline::after(kImportTime.count()));
  const int status = child ? child.kill() : -1;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Failure(kNotFound, fmt::format("{} has no module torch with gloo (Debian: python3-torch)", python));
  }
}

BenchJob mpi(const std::string& name, int ranks) {
  BenchJob made;
  made.launches_itself = true;
  if (name == kMpich) {
    made.command = {installed("mpirun.mpich", "mpich"), "-np", std::to_string(ranks)};
  } else {
    made.command = {installed("mpirun.openmpi", "openmpi-bin"), "-np", std::to_string(ranks), "--bind-to", "none"};
    if (ranks > cores()) made.command.emplace_back("--oversubscribe");
    if (::geteuid() == 0) made.command.emplace_back("--allow-run-as-root");
  }
  made.command.push_back(driver(name, "bench_" + name, name == kMpich ? "libmpich-dev" : "libopenmpi-dev"));
  return made;
}

BenchJob gloo() {
  BenchJob made;
  made.wants_directory = true;
  made.command = {driver(kGloo, "bench_gloo", "libgloo-dev")};
  return made;
}

BenchJob torch() {
  BenchJob made;
  made.wants_directory = true;
  const std::string python = installed("python3", "python3");
  require_module(python);
  made.command = {python, driver(kTorch, "bench_torch.py", "python3-torch")};
  return made;
}

BenchJob from_file(const std::string& path, int ranks) {
  if (::access(path.c_str(), X_OK) != 0) {
    throw Failure(kNotFound, fmt::format("{} cannot be executed: {}", printable(path), errno_text(errno)));
  }
  BenchJob made;
  made.launches_itself = true;
  made.command = {fs::absolute(path), std::to_string(ranks)};
  return made;
}

BenchJob by_name(const std::string& name, int ranks) {
  if (name == kGloo) return gloo();
  if (name == kTorch) return torch();
  return mpi(name, ranks);
}

std::vector<std::string> settings(const std::string& written) {
  std::vector<std::string> result;
  size_t begin = written.find('?');
  while (begin != std::string::npos) {
    const size_t end = written.find('&', begin + 1);
    const std::string one = written.substr(begin + 1, end == std::string::npos ? end : end - begin - 1);
    if (one.find('=') == std::string::npos || one.front() == '=' || one.front() == '-') {
      throw Failure(kWrongUse, fmt::format("--peer {}: expected VARIABLE=VALUE after '?' and '&'", printable(written)));
    }
    result.push_back(one);
    begin = end;
  }
  return result;
}

}  // namespace

std::vector<std::string> peer_names() { return {kOpenMpi, kMpich, kGloo, kTorch}; }

BenchJob find_peer(const std::string& written, int ranks) {
  const std::string name = written.substr(0, written.find('?'));
  const bool is_file = name.find('/') != std::string::npos;
  const std::vector<std::string> names = peer_names();
  if (!is_file && std::find(names.begin(), names.end(), name) == names.end()) {
    throw Failure(kWrongUse, fmt::format("--peer: unknown peer '{}'; the peers are {}, all, and files with a /",
                                         printable(name), join(names)));
  }
  const std::vector<std::string> variables = settings(written);
  BenchJob made = is_file ? from_file(name, ranks) : by_name(name, ranks);
  if (!variables.empty()) {
    std::vector<std::string> command = {find_program("env")};
    command.insert(command.end(), variables.begin(), variables.end());
    command.insert(command.end(), made.command.begin(), made.command.end());
    made.command = std::move(command);
  }
  made.targets = {fmt::format("peer {}", is_file ? written.substr(name.rfind('/') + 1) : written)};
  made.is_peer = true;
  return made;
}

}  // namespace backplane::tool
