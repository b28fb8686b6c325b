// SPDX-License-Identifier: Apache-2.0
#include "common/subprocess.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>

#include "common/failure.hpp"
#include "common/process.hpp"

namespace backplane::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollInterval = 100;  // milliseconds

// The child writes lines that begin with L, then R and the result.
void write_all(int pipe, const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t size = ::write(pipe, text.data() + sent, text.size() - sent);
    if (size < 0 && errno != EINTR) ::_exit(kFailed);
    if (size > 0) sent += static_cast<size_t>(size);
  }
}

[[noreturn]] void run_child(const std::function<std::string(const WriteLine& write_line)>& body, int pipe,
                            pid_t parent) {
  ::setsid();  // isolates the command from signals to the child's group
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);
  try {
    std::string result(1, 'R');
    result += body([pipe](const std::string& line) { write_all(pipe, fmt::format("L{}\n", line)); });
    write_all(pipe, result);
  } catch (const std::exception& error) {
    fmt::print(stderr, "backplane: {}\n", error.what());
    ::_exit(kFailed);
  }
  ::_exit(0);
}

class ChildOutput {
 public:
  explicit ChildOutput(const std::function<void(const std::string&)>& on_line) : on_line_(on_line) {}

  void feed(std::string_view bytes) {
    text_ += bytes;
    while (!in_result_ && !text_.empty()) {
      in_result_ = text_.front() == 'R';
      const size_t end = text_.find('\n');
      if (in_result_ || end == std::string::npos) break;
      if (on_line_) on_line_(text_.substr(1, end - 1));
      text_.erase(0, end + 1);
    }
  }
  bool has_result() const { return in_result_; }
  std::string result() const { return text_.substr(1); }

 private:
  const std::function<void(const std::string&)>& on_line_;
  std::string text_;
  bool in_result_ = false;
};

std::string describe_end(int status) {
  if (WIFEXITED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  return fmt::format("was ended by signal {} ({})", WTERMSIG(status), signal_text(WTERMSIG(status)));
}

// Waits until the child has ended and sets `status`. Returns false, and kills it, after `silence` without output.
bool listen(pid_t child, int pipe, std::chrono::nanoseconds silence, ChildOutput& output, int& status) {
  Clock::time_point last_output = Clock::now();
  bool ended = false;
  for (;;) {
    pollfd polled = {pipe, POLLIN, 0};
    if (::poll(&polled, 1, kPollInterval) > 0) {
      std::array<char, 65536> bytes;
      const ssize_t size = ::read(pipe, bytes.data(), bytes.size());
      if (size > 0) output.feed({bytes.data(), static_cast<size_t>(size)});
      if (size == 0) {
        if (!ended) status = reap(child);
        return true;
      }
      last_output = Clock::now();
    }
    if (ended && polled.revents == 0) return true;  // another process holds the pipe open
    if (ended) continue;
    ended = ::waitpid(child, &status, WNOHANG | WUNTRACED) == child;
    if (ended && WIFSTOPPED(status)) {
      ended = false;
      ::kill(child, SIGCONT);  // only plugin code stops it
    }
    if (!ended && Clock::now() - last_output > silence) {
      ::kill(child, SIGKILL);
      reap(child);
      return false;
    }
  }
}

}  // namespace

SubprocessResult run_subprocess(const std::function<std::string(const WriteLine& write_line)>& body,
                                const std::function<void(const std::string& line)>& on_line,
                                std::chrono::nanoseconds silence) {
  Pipe pipe = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail_system("cannot start a process");
  if (child == 0) {
    pipe.read.reset();
    run_child(body, pipe.write.get(), parent);
  }
  pipe.write.reset();
  ChildOutput output(on_line);
  int status = 0;
  if (!listen(child, pipe.read.get(), silence, output, status)) {
    return {false, {}, fmt::format("wrote nothing for {} s", std::chrono::duration<double>(silence).count())};
  }
  if (output.has_result() && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {true, output.result(), {}};
  return {false, {}, describe_end(status)};
}

}  // namespace backplane::tool
