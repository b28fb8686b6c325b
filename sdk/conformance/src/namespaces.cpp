// SPDX-License-Identifier: Apache-2.0
#include "namespaces.hpp"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

namespace backplane::conformance {
namespace {

// The report of the holder: success, or the failed step and its errno.
struct Readiness {
  int error = 0;
  char step[60] = {};
};

bool write_file(const char* path, const std::string& text) {
  const base::Descriptor file(open(path, O_WRONLY | O_CLOEXEC));
  return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Maps the user and group of the outside to the same ids inside.
bool keep_ids(uid_t user, gid_t group) {
  write_file("/proc/self/setgroups", "deny");
  return write_file("/proc/self/uid_map", fmt::format("{} {} 1", user, user)) &&
         write_file("/proc/self/gid_map", fmt::format("{} {} 1", group, group));
}

bool enter_new_namespaces(bool network) {
  if (!network) return unshare(CLONE_NEWNS) == 0;
  constexpr int kKinds = CLONE_NEWNET | CLONE_NEWNS;
  if (unshare(kKinds) == 0) return true;
  const uid_t user = geteuid();
  const gid_t group = getegid();
  return unshare(CLONE_NEWUSER | kKinds) == 0 && keep_ids(user, group);
}

Readiness prepare(bool network) {
  Readiness readiness;
  const auto failed = [&readiness](const char* step) {
    readiness.error = errno;
    std::snprintf(readiness.step, sizeof readiness.step, "%s", step);
    return readiness;
  };
  if (!enter_new_namespaces(network)) return failed("unshare");
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return failed("making mounts private");
  if (mount("none", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0) return failed("mounting /dev/shm");
  if (network && !set_loopback(true)) return failed("bringing loopback up");
  return readiness;
}

// Reports success or the error to the maker, then waits to be killed.
int hold(bool network, int report) {
  const pid_t maker = getppid();
  // Keeps no pipe of the maker open.
  dup2(report, 0);
  close_range(1, ~0U, 0);
  const Readiness readiness = prepare(network);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of credentials clears it
  const bool reported = write(0, &readiness, sizeof readiness) == sizeof readiness;
  if (!reported || readiness.error != 0 || getppid() != maker) return 1;
  close(0);
  for (;;) pause();
}

// Joins one namespace unless the caller is in it already (setns into one's own user namespace is refused).
bool enter(pid_t holder, const char* kind, int flag) {
  const base::Descriptor theirs(open(fmt::format("/proc/{}/ns/{}", holder, kind).c_str(), O_RDONLY | O_CLOEXEC));
  if (!theirs) return false;
  std::array<char, 64> ours_name{};
  std::array<char, 64> theirs_name{};
  const bool known =
      readlink(fmt::format("/proc/self/ns/{}", kind).c_str(), ours_name.data(), ours_name.size() - 1) > 0 &&
      readlink(fmt::format("/proc/{}/ns/{}", holder, kind).c_str(), theirs_name.data(), theirs_name.size() - 1) > 0;
  const bool there = known && std::strcmp(ours_name.data(), theirs_name.data()) == 0;
  return there || setns(theirs.get(), flag) == 0;
}

}  // namespace

std::optional<Namespaces> Namespaces::make(bool network, std::string& why_not) {
  base::Pipe report = base::Pipe::open();
  Namespaces holder;
  if (report) holder.process_ = base::Subprocess::fork([&] { return hold(network, report.write.get()); });
  if (!holder.process_) {
    why_not = fmt::format("no process for namespaces: {}", std::strerror(errno));
    return std::nullopt;
  }
  report.write.reset();
  Readiness readiness;
  ssize_t size = 0;
  while ((size = read(report.read.get(), &readiness, sizeof readiness)) < 0 && errno == EINTR) {
  }
  if (size == sizeof readiness && readiness.error == 0) return holder;
  const char* const what = network ? "a network of its own" : "a /dev/shm of its own";
  why_not = size == sizeof readiness
                ? fmt::format("{} is not permitted here ({}: {})", what, readiness.step, std::strerror(readiness.error))
                : fmt::format("{} could not be made here", what);
  return std::nullopt;
}

bool Namespaces::join() const {
  std::array<char, PATH_MAX> directory{};
  const bool known = getcwd(directory.data(), directory.size()) != nullptr;
  unshare(CLONE_FS);  // a sanitizer's thread shares the working directory, which forbids changes of mounts
  if (!enter(process_.pid(), "user", CLONE_NEWUSER) || !enter(process_.pid(), "net", CLONE_NEWNET) ||
      !enter(process_.pid(), "mnt", CLONE_NEWNS)) {
    return false;
  }
  return !known || chdir(directory.data()) == 0;  // a new mount namespace begins at its root
}

bool set_loopback(bool up) {
  const base::Descriptor control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!control) return false;
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo");
  if (ioctl(control.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  return ioctl(control.get(), SIOCSIFFLAGS, &request) == 0;
}

}  // namespace backplane::conformance
