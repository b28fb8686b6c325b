// SPDX-License-Identifier: Apache-2.0
//
// Child processes: start, output, signals, end. Linux only.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deadline.hpp"
#include "pipe.hpp"

namespace backplane::base {

inline void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// The timeout of poll() in milliseconds, rounded up; -1 for no limit.
inline int poll_timeout(const Deadline& deadline) {
  if (deadline.infinite()) return -1;
  return static_cast<int>(std::min<int64_t>((deadline.left_ns() + 999'999) / 1'000'000, INT_MAX));
}

// Passes the contents of a non-blocking pipe to `take`, at most 1 MiB, the capacity of a pipe. Returns false at the end
// of the stream.
template <typename Take>
bool read_available(int fd, const Take& take) {
  std::array<char, 65536> bytes;
  for (int turns = 0; turns < 16; ++turns) {
    const ssize_t size = ::read(fd, bytes.data(), bytes.size());
    if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
    take(std::string_view(bytes.data(), static_cast<size_t>(size)));
  }
  return true;
}

// "SIGSEGV"; "signal 99" for a number without a name.
inline std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : std::string("SIG") + name;
}

// The environment of this process, with `variables` added or replaced.
inline std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (variables.count(text.substr(0, text.find('='))) == 0) result.push_back(text);
  }
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

// A program to execute and the state that it starts with.
struct Command {
  static constexpr int kNullDevice = -1;

  std::string path;                    // PATH is not searched
  std::vector<std::string> arguments;  // the program's name first
  std::vector<std::string> environment = environment_with({});
  std::map<int, int> descriptors = {};  // number in the child -> own, or kNullDevice; others are inherited
  sigset_t signal_mask = {};            // blocked in the child
  bool default_sigpipe = false;         // restores SIGPIPE, which this process ignores
  int announce = -1;                    // where the child writes its pid_t before it executes the program; -1: nowhere
  std::optional<rlimit> descriptor_limit = {};  // of the child, if it is not that of this process
};

// Sends a signal to a process group, or to its first process if that does not lead the group yet. With a pidfd of that
// process (-1: none) and Linux 6.9, never to another group that has got its number since.
inline void signal_group(int pidfd, pid_t pid, int number) {
  constexpr unsigned kProcessGroup = 1U << 2;  // PIDFD_SIGNAL_PROCESS_GROUP
  const auto send = [pidfd, number](unsigned flags) {
    return pidfd >= 0 && ::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, flags) == 0;
  };
  if (send(kProcessGroup)) return;
  if (pidfd >= 0 && errno == ESRCH) {
    send(0);
    return;
  }
  if (::kill(-pid, number) == 0) return;
  if (pidfd >= 0) {
    send(0);
  } else {
    ::kill(pid, number);
  }
}

// For poll(): readable once the process has ended; -1 if the kernel has no pidfd (before Linux 5.3).
inline Descriptor open_pidfd(pid_t pid) {
  // glibc 2.36 declares pidfd_open for C only.
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// A child process with a process group of its own. The destructor kills the group. The kernel kills the child when the
// thread that started it ends. One thread at a time.
class Subprocess {
 public:
  static constexpr int kUnknownEnd = 255;  // an exit code

  Subprocess() = default;
  Subprocess(Subprocess&& other) noexcept { *this = std::move(other); }
  Subprocess& operator=(Subprocess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(parent_, other.parent_);
    std::swap(process_, other.process_);
    std::swap(status_, other.status_);
    std::swap(exec_error_, other.exec_error_);
    return *this;
  }
  ~Subprocess() {
    if (pid_ > 0 && parent_ == ::getpid()) kill();  // a forked copy owns nothing
  }

  // Starts a program. Blocks until it is executed, or exec_error() says why it was not. Other threads may exist.
  // Returns an empty object, and sets errno, if no process could be made.
  static Subprocess spawn(Command command) {
    const std::vector<char*> arguments = pointers(command.arguments);
    const std::vector<char*> environment = pointers(command.environment);
    Pipe report = Pipe::open();
    Subprocess child(report ? fork_child() : -1);
    if (child.pid_ == 0) execute(command, arguments.data(), environment.data(), report.write.get());
    report.write.reset();
    // The stream ends without a number if exec has closed the child's copy.
    while (child && ::read(report.read.get(), &child.exec_error_, sizeof(int)) < 0 && errno == EINTR) {
    }
    return child;
  }

  // Runs `body` in a copy of this process with a session of its own. The copy exits with the code that `body` returns.
  // Returns an empty object, and sets errno, if no process could be made.
  template <typename Body>
  static Subprocess fork(const Body& body) {
    const pid_t pid = fork_child();
    if (pid == 0) {
      ::setsid();
      [&body]() noexcept { ::_exit(body()); }();
    }
    return Subprocess(pid);
  }

  explicit operator bool() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  int exec_error() const { return exec_error_; }  // an errno; 0 if the program was executed

  // See open_pidfd.
  int fd() {
    if (!process_) process_ = open_pidfd(pid_);
    return process_.get();
  }

  // Sends a signal to the process group. No effect once wait has returned a status.
  void signal(int number) const {
    if (!status_) signal_group(process_.get(), pid_, number);
  }

  // How the process ended, as waitid() reports it; nothing while it runs. Does not release the pid. If the kernel,
  // because SIGCHLD is ignored, or other code has reaped the process, it counts as exited with kUnknownEnd.
  std::optional<siginfo_t> end() const {
    siginfo_t how{};
    const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &how, WEXITED | WNOHANG | WNOWAIT);
    if (result == 0 && how.si_pid == 0) return std::nullopt;
    if (result == 0) return how;
    how.si_pid = pid_;
    how.si_code = CLD_EXITED;
    how.si_status = kUnknownEnd;
    return how;
  }

  // Returns the status of waitpid(), or nothing if the process still runs at the deadline. Kills the rest of the group.
  // kUnknownEnd as for end().
  std::optional<int> wait(Deadline deadline = Deadline::never()) {
    while (!status_ && !deadline.infinite() && !end()) {
      if (deadline.passed()) return {};
      poll_end(-1, deadline);
    }
    if (status_) return status_;
    siginfo_t how{};
    int result = 0;
    while ((result = ::waitid(P_PID, static_cast<id_t>(pid_), &how, WEXITED | WNOWAIT)) < 0 && errno == EINTR) {
    }
    if (result == 0) ::kill(-pid_, SIGKILL);  // before waitpid releases the pid
    int status = 0;
    while ((result = ::waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
    }
    status_ = result < 0 ? W_EXITCODE(kUnknownEnd, 0) : status;
    return status_;
  }

  // Kills the group and waits.
  int kill() {
    signal(SIGKILL);
    return *wait();
  }

  // Passes output of the process to `take` until the process has ended. Returns false if it still runs at the deadline.
  // `fd` is the non-blocking read end of a pipe.
  template <typename Take>
  bool read(int fd, Deadline deadline, const Take& take) {
    for (;;) {
      poll_end(fd, deadline);
      const bool ended = end().has_value();  // then the pipe has all of the output
      if (fd >= 0 && !read_available(fd, take)) fd = -1;
      if (ended || deadline.passed()) return ended;
    }
  }

 private:
  explicit Subprocess(pid_t pid) : pid_(pid), parent_(::getpid()) {}

  static pid_t fork_child() {
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kNotExecuted);  // the parent died before prctl took effect
    return 0;
  }

  static std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& each : strings) result.push_back(each.data());
    result.push_back(nullptr);
    return result;
  }

  // Async-signal-safe calls only, since the parent may have threads.
  [[noreturn]] static void execute(Command& command, char* const* arguments, char* const* environment, int report) {
    ::setpgid(0, 0);
    const pid_t self = ::getpid();
    // Shorter than PIPE_BUF, so the write is atomic. A closed pipe does not prevent the start.
    while (command.announce >= 0 && ::write(command.announce, &self, sizeof self) < 0 && errno == EINTR) {
    }
    // Above all numbers of the child first, so that no dup2 overwrites a source of another.
    const int above = command.descriptors.empty() ? 0 : command.descriptors.rbegin()->first + 1;
    report = ::fcntl(report, F_DUPFD_CLOEXEC, above);
    for (auto& [number, own] : command.descriptors) {
      if (own == Command::kNullDevice) own = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      own = ::fcntl(own, F_DUPFD_CLOEXEC, above);
    }
    bool placed = true;
    for (const auto& [number, own] : command.descriptors) placed = placed && ::dup2(own, number) >= 0;
    if (command.default_sigpipe) ::signal(SIGPIPE, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &command.signal_mask, nullptr);
    if (command.descriptor_limit) ::setrlimit(RLIMIT_NOFILE, &*command.descriptor_limit);
    if (placed) ::execve(command.path.c_str(), arguments, environment);
    const int error = errno;
    // The parent ignores a short report and then sees the exit code.
    if (::write(report, &error, sizeof error) != sizeof error) ::_exit(kNotExecuted);
    ::_exit(kNotExecuted);
  }

  // Waits until `fd` is readable, the process has ended or the deadline has passed. It may return early.
  void poll_end(int fd, const Deadline& deadline) {
    constexpr int kWithoutPidfd = 2;  // milliseconds
    pollfd polled[] = {{fd, POLLIN, 0}, {this->fd(), POLLIN, 0}};
    const int timeout = poll_timeout(deadline);
    ::poll(polled, 2, polled[1].fd >= 0 || timeout == 0 ? timeout : kWithoutPidfd);
  }

  static constexpr int kNotExecuted = 126;  // as in shells

  pid_t pid_ = -1;
  pid_t parent_ = -1;
  Descriptor process_;
  std::optional<int> status_;
  int exec_error_ = 0;
};

}  // namespace backplane::base
