// SPDX-License-Identifier: Apache-2.0
#include "common/process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/failure.hpp"

namespace backplane::tool {
namespace {

void lift(Descriptor& descriptor) {
  Descriptor high(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kLowestDescriptor));
  if (!high) fail_system("cannot duplicate a descriptor");
  descriptor = std::move(high);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

[[noreturn]] void give_up(int report, int number) {
  // The parent reads a short report as none and then sees the exit code.
  if (::write(report, &number, sizeof number) != sizeof number) ::_exit(kNotExecutable);
  ::_exit(kNotExecutable);
}

// All that happens between fork and exec: async-signal-safe calls only, since the parent may have threads.
[[noreturn]] void become(const Child& child, char* const* arguments, char* const* environment, pid_t parent,
                         int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotExecutable);  // the parent died before prctl took effect
  const pid_t self = ::getpid();
  // Less than PIPE_BUF, so the write is atomic. A closed pipe does not prevent the start.
  while (child.announce >= 0 && ::write(child.announce, &self, sizeof self) < 0 && errno == EINTR) {
  }
  const bool placed = ::dup2(child.input, 0) >= 0 && ::dup2(child.output, 1) >= 0 && ::dup2(child.error, 2) >= 0 &&
                      (child.extra < 0 || ::dup2(child.extra, kExtraDescriptor) >= 0) &&
                      (child.inherited < 0 || ::fcntl(child.inherited, F_SETFD, 0) == 0);
  if (!placed) give_up(report, errno);
  if (child.default_sigpipe) ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &child.signal_mask, nullptr);
  ::execve(child.path.c_str(), arguments, environment);
  give_up(report, errno);
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_system("cannot make a pipe");
  Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  lift(pipe.read);
  lift(pipe.write);
  return pipe;
}

Descriptor open_null_device() {
  Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) fail_system("cannot open /dev/null");
  lift(null);
  return null;
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    // The lowest free number is the one that was found closed.
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) ::_exit(kFailed);
  }
}

Started start(const Child& child) {
  const std::vector<char*> arguments = pointers(child.arguments);
  const std::vector<char*> environment = pointers(child.environment);
  Pipe report = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail_system("cannot start a process");
  if (pid == 0) become(child, arguments.data(), environment.data(), parent, report.write.get());
  report.write.reset();
  // End of file means that exec has succeeded: it closed the child's copy.
  int number = 0;
  ssize_t size = 0;
  do {
    size = ::read(report.read.get(), &number, sizeof number);
  } while (size < 0 && errno == EINTR);
  return {pid, size == static_cast<ssize_t>(sizeof number) ? number : 0};
}

int kill_and_reap(pid_t pid) {
  ::kill(-pid, SIGKILL);
  return reap(pid);
}

int reap(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace backplane::tool
