// SPDX-License-Identifier: Apache-2.0
#include "proc.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>

#include <fmt/format.h>

extern "C" {
__attribute__((weak)) void __asan_init();
__attribute__((weak)) void __tsan_init();
}

namespace backplane::conformance {
namespace {

constexpr uint64_t kAllSignals = ~UINT64_C(0);

std::mutex looking;  // ranks that are threads of one process must not find each other's open directories

void each_entry(const char* path, const std::function<void(const std::string& name)>& visit) {
  DIR* directory = opendir(path);
  if (directory == nullptr) return;
  const std::string own = std::to_string(dirfd(directory));
  const bool of_descriptors = std::string_view(path) == "/proc/self/fd";
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && !(of_descriptors && name == own)) visit(name);
  }
  closedir(directory);
}

std::set<pid_t> numbers(const char* path) {
  std::set<pid_t> found;
  each_entry(path, [&found](const std::string& name) {
    const int number = std::atoi(name.c_str());
    if (number > 0) found.insert(number);
  });
  return found;
}

uint64_t mask_in(const std::string& path, const std::string& field, uint64_t otherwise) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(field + ":")) return std::strtoull(line.c_str() + field.size() + 1, nullptr, 16);
  }
  return otherwise;
}

template <typename Address>
Listener listener_of(int family, const Address& address, size_t size = sizeof(Address)) {
  return {family, std::string(reinterpret_cast<const char*>(&address), size)};
}

// A line of /proc/net/tcp or tcp6: "sl local_address rem_address st ...", addresses as hexadecimal words.
void add_tcp_listener(const std::string& line, bool six, std::set<Listener>& found) {
  std::istringstream words(line);
  std::string number;
  std::string local;
  std::string remote;
  std::string state;
  if (!(words >> number >> local >> remote >> state) || state != "0A") return;
  const size_t colon = local.find(':');
  if (colon != (six ? 32U : 8U)) return;
  const auto port = htons(static_cast<uint16_t>(std::strtoul(local.c_str() + colon + 1, nullptr, 16)));
  std::array<uint32_t, 4> bytes{};
  for (size_t i = 0; i < colon / 8; ++i) {
    bytes[i] = static_cast<uint32_t>(std::strtoul(local.substr(i * 8, 8).c_str(), nullptr, 16));
  }
  const bool wildcard = bytes == std::array<uint32_t, 4>{};
  if (six) {
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_port = port;
    if (wildcard) {
      address.sin6_addr = in6addr_loopback;
    } else {
      std::memcpy(&address.sin6_addr, bytes.data(), sizeof address.sin6_addr);
    }
    found.insert(listener_of(AF_INET6, address));
  } else {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = port;
    address.sin_addr.s_addr = wildcard ? htonl(INADDR_LOOPBACK) : bytes[0];
    found.insert(listener_of(AF_INET, address));
  }
}

// A line of /proc/net/unix: "Num RefCount Protocol Flags Type St Inode Path".
void each_unix_socket(const std::function<void(bool listens, const std::string& name)>& visit) {
  std::ifstream file("/proc/net/unix");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string number;
    std::string references;
    std::string protocol;
    std::string flags;
    std::string type;
    std::string state;
    std::string inode;
    std::string name;
    if (!(words >> number >> references >> protocol >> flags >> type >> state >> inode >> name)) continue;
    visit((std::strtoul(flags.c_str(), nullptr, 16) & 0x10000) != 0, name);
  }
}

}  // namespace

std::map<int, Descriptor> descriptors() {
  std::map<int, Descriptor> found;
  each_entry("/proc/self/fd", [&found](const std::string& name) {
    const int number = std::atoi(name.c_str());
    std::array<char, PATH_MAX> target{};
    const ssize_t size = readlink(("/proc/self/fd/" + name).c_str(), target.data(), target.size() - 1);
    const int flags = fcntl(number, F_GETFD);
    if (size < 0 || flags < 0) return;
    const std::string what(target.data(), static_cast<size_t>(size));
    if (what.rfind("/proc/", 0) == 0) return;  // another rank of this process reading /proc
    found[number] = {what, (flags & FD_CLOEXEC) != 0};
  });
  return found;
}

std::set<pid_t> threads() { return numbers("/proc/self/task"); }

std::set<pid_t> child_processes() {
  std::set<pid_t> found;
  for (const pid_t thread : threads()) {
    std::ifstream file(fmt::format("/proc/self/task/{}/children", thread));
    pid_t child = 0;
    while (file >> child) found.insert(child);
  }
  return found;
}

std::set<std::string> shared_memory() {
  std::set<std::string> found;
  each_entry("/dev/shm", [&found](const std::string& name) { found.insert(name); });
  return found;
}

uint64_t resident_bytes() {
  const std::lock_guard alone(looking);
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0;
  uint64_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

bool has_sanitizer() { return __asan_init != nullptr || __tsan_init != nullptr; }

uint64_t blocked_signals(pid_t thread) {
  return mask_in(fmt::format("/proc/self/task/{}/status", thread), "SigBlk", kAllSignals);
}

std::string status_text(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, field.size() + 1, field + ":") == 0) return line.substr(field.size() + 1);
  }
  return "unknown";
}

uint64_t status_mask(const std::string& field) { return mask_in("/proc/self/status", field, 0); }

std::vector<int> connected_tcp() {
  std::vector<int> found;
  for (const auto& [number, descriptor] : descriptors()) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof peer;
    if (!descriptor.target.starts_with("socket:")) continue;
    if (getpeername(number, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) found.push_back(number);
  }
  return found;
}

Footprint Footprint::take() {
  const std::lock_guard alone(looking);
  return {descriptors(), threads(), child_processes(), shared_memory()};
}

namespace {

std::string difference(const Footprint& before, const Footprint& after) {
  std::string found;
  const auto add = [&found](const std::string& what) { found += (found.empty() ? "" : ", ") + what; };
  for (const auto& [number, descriptor] : after.open) {
    const auto earlier = before.open.find(number);
    if (earlier == before.open.end() || earlier->second.target != descriptor.target) {
      add(fmt::format("descriptor {} ({})", number, descriptor.target));
    }
  }
  if (after.running.size() > before.running.size()) {
    add(fmt::format("{} threads more", after.running.size() - before.running.size()));
  }
  for (const pid_t child : after.children) {
    if (before.children.count(child) == 0) add(fmt::format("child process {}", child));
  }
  for (const std::string& name : after.shared) {
    if (before.shared.count(name) == 0) add("/dev/shm/" + name);
  }
  return found;
}

}  // namespace

std::string grown_since(const Footprint& before, Nanoseconds timeout) {
  const Nanoseconds deadline = now() + timeout;
  for (;;) {
    const std::string found = difference(before, Footprint::take());
    if (found.empty() || now() >= deadline) return found;
    poll(nullptr, 0, 2);
  }
}

std::string left_behind(const Footprint& before, Nanoseconds timeout) {
  std::string found = grown_since(before, timeout);
  const Footprint after = Footprint::take();
  for (const auto& [number, descriptor] : before.open) {
    if (after.open.count(number) != 0) continue;
    found += fmt::format("{}descriptor {} ({}) is gone", found.empty() ? "" : ", ", number, descriptor.target);
  }
  return found;
}

uint16_t Listener::port() const {
  if (family == AF_UNIX) return 0;
  uint16_t port = 0;  // at the same offset in both kinds of address
  std::memcpy(&port, address.data() + offsetof(sockaddr_in, sin_port), sizeof port);
  return ntohs(port);
}

std::string Listener::text() const {
  return family == AF_UNIX ? "a UNIX socket" : fmt::format("{}{}", family == AF_INET ? "127.0.0.1:" : "[::1]:", port());
}

std::set<Listener> listeners() {
  std::set<Listener> found;
  for (const bool six : {false, true}) {
    std::ifstream file(six ? "/proc/net/tcp6" : "/proc/net/tcp");
    std::string line;
    while (std::getline(file, line)) add_tcp_listener(line, six, found);
  }
  each_unix_socket([&found](bool listens, const std::string& name) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (!listens || name.size() >= sizeof address.sun_path) return;
    std::memcpy(address.sun_path, name.data(), name.size());
    const bool abstract = name.front() == '@';
    if (abstract) address.sun_path[0] = '\0';
    found.insert(listener_of(AF_UNIX, address, offsetof(sockaddr_un, sun_path) + name.size() + (abstract ? 0 : 1)));
  });
  return found;
}

std::set<Listener> own_listeners() {
  std::set<Listener> found;
  for (const auto& [number, descriptor] : descriptors()) {
    int accepts = 0;
    socklen_t size = sizeof accepts;
    if (getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) != 0 || accepts == 0) continue;
    sockaddr_storage address = {};
    size = sizeof address;
    if (getsockname(number, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    found.insert(listener_of(address.ss_family, address, size));
  }
  return found;
}

std::set<std::string> unix_names() {
  std::set<std::string> found;
  each_unix_socket([&found](bool, const std::string& name) { found.insert(name); });
  return found;
}

}  // namespace backplane::conformance
