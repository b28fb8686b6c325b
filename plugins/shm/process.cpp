// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backplane/sdk/sockets.hpp"

namespace backplane::shm {
namespace {

std::string read_file(const char* path) {
  const sdk::Descriptor fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  std::array<char, 1024> text{};
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  if (got < 0) return {};
  errno = 0;
  return {text.data(), static_cast<size_t>(got)};
}

struct Stat {
  char state = '?';
  uint64_t start_time = 0;
};

// On failure state stays '?' and errno is set.
Stat stat_of(pid_t process) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", process);
  const std::string text = read_file(path.data());
  const size_t name_ends = text.rfind(')');  // the name may contain any character
  Stat result;
  if (name_ends == std::string::npos || name_ends + 2 >= text.size()) return result;
  const char* at = text.c_str() + name_ends + 2;
  result.state = *at;
  for (int field = 3; field < 22 && at != nullptr; ++field) {
    at = std::strchr(at, ' ');
    if (at != nullptr) ++at;
  }
  if (at != nullptr) result.start_time = std::strtoull(at, nullptr, 10);
  return result;
}

// A thread-group leader that has ended is a zombie while other threads of its process run.
bool has_exited(pid_t process) {
  const sdk::Descriptor fd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!fd) return errno == ESRCH || errno == ENOSYS;
  pollfd item = {fd.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) == 1;
}

}  // namespace

uint64_t pid_namespace() {
  std::array<char, 32> self{};  // differs from getpid() if /proc belongs to another pid namespace
  if (::readlink("/proc/self", self.data(), self.size() - 1) < 0) return 0;
  if (self.data() != std::to_string(::getpid())) return 0;
  struct stat facts {};
  return ::stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

uint64_t start_time_of(pid_t process) { return stat_of(process).start_time; }

Processors usable_cpus() {
  Processors mask{};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return mask;
  for (size_t i = 0; i < mask.size() * 64 && i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) mask[i / 64] |= UINT64_C(1) << (i % 64);
  }
  return mask;
}

bool is_alive(pid_t process, uint64_t start_time) {
  errno = 0;
  const Stat now = stat_of(process);
  if (now.state == '?') {  // also if /proc hides it
    return (errno != ENOENT && errno != ESRCH) || ::kill(process, 0) == 0 || errno != ESRCH;
  }
  if (start_time != 0 && now.start_time != 0 && now.start_time != start_time) return false;
  if (now.state != 'Z' && now.state != 'X') return true;
  return !has_exited(process);
}

}  // namespace backplane::shm
