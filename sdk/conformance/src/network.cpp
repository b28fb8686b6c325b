// SPDX-License-Identifier: Apache-2.0
#include "network.hpp"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include "backplane/base/pipe.hpp"
#include "say.hpp"

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

// Everything inside belongs to the same user as outside.
bool keep_ids(uid_t user, gid_t group) {
  write_file("/proc/self/setgroups", "deny");
  return write_file("/proc/self/uid_map", say(user, " ", user, " 1")) &&
         write_file("/proc/self/gid_map", say(group, " ", group, " 1"));
}

bool enter_new_namespaces() {
  constexpr int kKinds = CLONE_NEWNET | CLONE_NEWNS;
  if (unshare(kKinds) == 0) return true;
  const uid_t user = geteuid();
  const gid_t group = getegid();
  return unshare(CLONE_NEWUSER | kKinds) == 0 && keep_ids(user, group);
}

Readiness prepare() {
  Readiness readiness;
  const auto failed = [&readiness](const char* step) {
    readiness.error = errno;
    std::snprintf(readiness.step, sizeof readiness.step, "%s", step);
    return readiness;
  };
  if (!enter_new_namespaces()) return failed("unshare");
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return failed("making mounts private");
  if (mount("none", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0) return failed("mounting /dev/shm");
  if (!set_loopback(true)) return failed("bringing loopback up");
  return readiness;
}

[[noreturn]] void hold(pid_t parent, int report, int leash) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  // Whatever else the maker has open, pipes above all, is none of the holder's business.
  dup2(report, 0);
  dup2(leash, 1);
  close_range(2, ~0U, 0);
  const Readiness readiness = prepare();
  if (write(0, &readiness, sizeof readiness) != sizeof readiness || readiness.error != 0) _exit(1);
  close(0);
  char nothing = 0;
  while (read(1, &nothing, 1) < 0 && errno == EINTR) {
  }
  _exit(0);
}

// Joins one namespace unless the caller is in it already (setns into one's own user namespace is refused).
bool enter(pid_t holder, const char* kind, int flag) {
  const base::Descriptor theirs(open(say("/proc/", holder, "/ns/", kind).c_str(), O_RDONLY | O_CLOEXEC));
  if (!theirs) return false;
  std::array<char, 64> ours_name{};
  std::array<char, 64> theirs_name{};
  const bool known =
      readlink(say("/proc/self/ns/", kind).c_str(), ours_name.data(), ours_name.size() - 1) > 0 &&
      readlink(say("/proc/", holder, "/ns/", kind).c_str(), theirs_name.data(), theirs_name.size() - 1) > 0;
  const bool there = known && std::strcmp(ours_name.data(), theirs_name.data()) == 0;
  return there || setns(theirs.get(), flag) == 0;
}

}  // namespace

std::optional<NetworkHolder> NetworkHolder::make(std::string& why_not) {
  base::Pipe report = base::Pipe::open();
  base::Pipe leash = base::Pipe::open();
  if (!report || !leash) {
    why_not = say("no pipe for a network of its own: ", std::strerror(errno));
    return std::nullopt;
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) hold(parent, report.write.get(), leash.read.get());
  if (child < 0) {
    why_not = say("no process for a network of its own: ", std::strerror(errno));
    return std::nullopt;
  }
  report.write.reset();
  NetworkHolder holder(child, std::move(leash.write));
  holder.maker_ = parent;
  Readiness readiness;
  ssize_t size = 0;
  while ((size = read(report.read.get(), &readiness, sizeof readiness)) < 0 && errno == EINTR) {
  }
  if (size == sizeof readiness && readiness.error == 0) return holder;
  why_not = size == sizeof readiness ? say("a network of its own is not permitted here (", readiness.step, ": ",
                                           std::strerror(readiness.error), ")")
                                     : std::string("a network of its own could not be made here");
  return std::nullopt;
}

NetworkHolder::NetworkHolder(NetworkHolder&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), leash_(std::move(other.leash_)), maker_(other.maker_) {}

NetworkHolder& NetworkHolder::operator=(NetworkHolder&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    leash_ = std::move(other.leash_);
    maker_ = other.maker_;
  }
  return *this;
}

NetworkHolder::~NetworkHolder() { end(); }

void NetworkHolder::end() {
  leash_.reset();
  if (pid_ < 0 || maker_ != getpid()) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

bool NetworkHolder::join() const {
  std::array<char, PATH_MAX> directory{};
  const bool known = getcwd(directory.data(), directory.size()) != nullptr;
  unshare(CLONE_FS);  // a sanitizer's thread shares the working directory, which forbids changes of mounts
  if (!enter(pid_, "user", CLONE_NEWUSER) || !enter(pid_, "net", CLONE_NEWNET) || !enter(pid_, "mnt", CLONE_NEWNS)) {
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
