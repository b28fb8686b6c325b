// SPDX-License-Identifier: Apache-2.0
#include "common/subprocess.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <exception>

#include "backplane/base/subprocess.hpp"
#include "common/failure.hpp"
#include "common/files.hpp"

namespace backplane::tool {
namespace {

using base::Deadline;

constexpr int64_t kContinueInterval = 100'000'000;  // nanoseconds

// The child writes lines that begin with L, then R and the result.
void write_all(int pipe, const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t size = ::write(pipe, text.data() + sent, text.size() - sent);
    if (size < 0 && errno != EINTR) ::_exit(kFailed);
    if (size > 0) sent += static_cast<size_t>(size);
  }
}

int run_child(const std::function<std::string(const WriteLine& write_line)>& body, int pipe) {
  try {
    std::string result(1, 'R');
    result += body([pipe](const std::string& line) { write_all(pipe, fmt::format("L{}\n", line)); });
    write_all(pipe, result);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "backplane: {}\n", error.what());
    return kFailed;
  }
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

}  // namespace

SubprocessResult run_subprocess(const std::function<std::string(const WriteLine& write_line)>& body,
                                const std::function<void(const std::string& line)>& on_line,
                                std::chrono::nanoseconds silence, const std::function<bool()>& stopped) {
  base::Pipe pipe = make_pipe();
  base::Subprocess child = base::Subprocess::fork([&body, &pipe] {
    pipe.read.reset();
    return run_child(body, pipe.write.get());
  });
  if (!child) fail_system("cannot start a process");
  pipe.write.reset();
  base::set_nonblocking(pipe.read.get());
  ChildOutput output(on_line);
  Deadline silent = Deadline::after(silence.count());
  const auto take = [&output, &silent, silence](std::string_view bytes) {
    output.feed(bytes);
    silent = Deadline::after(silence.count());
  };
  while (!child.read(pipe.read.get(), Deadline::after(kContinueInterval), take)) {
    if (silent.passed()) {
      return {false, {}, fmt::format("wrote nothing for {} s", std::chrono::duration<double>(silence).count())};
    }
    if (stopped && stopped()) return {false, {}, "was stopped"};
    child.signal(SIGCONT);  // plugin code may have stopped it
  }
  const int status = *child.wait();
  if (output.has_result() && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {true, output.result(), {}};
  return {false, {}, describe_end(status)};
}

}  // namespace backplane::tool
