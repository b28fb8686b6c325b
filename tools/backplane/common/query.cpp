// SPDX-License-Identifier: Apache-2.0
#include "common/query.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "backplane/backplane.h"
#include "common/failure.hpp"
#include "common/process.hpp"

namespace backplane::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongest = size_t{16} * 1024 * 1024;

// Reads a child's reply from the pipe, up to the NUL that ends it.
class ReplyReader {
 public:
  explicit ReplyReader(Descriptor pipe) : pipe_(std::move(pipe)) { set_nonblocking(pipe_.get()); }

  bool complete() const { return complete_; }
  const std::string& text() const { return text_; }

  // Reads until the reply is complete or the child has ended. Returns false at `end`.
  bool listen(pid_t child, Clock::time_point end) {
    // glibc 2.36 declares pidfd_open for C only.
    const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    if (!process) fail_system("cannot watch a child process");
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      if (left <= 0) return false;
      pollfd polled[] = {{pipe_.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
      if (::poll(polled, 2, static_cast<int>(std::min<int64_t>(left, 60'000))) < 0) continue;
      if (polled[0].revents != 0) read();
      if (complete_ || polled[1].revents == 0) {
        if (complete_) return true;
        continue;
      }
      while (read()) {  // the reply may have arrived just before the end
      }
      return true;
    }
  }

 private:
  // Returns true if it has read data.
  bool read() {
    std::array<char, 16384> buffer;
    const ssize_t size = pipe_ && !complete_ ? ::read(pipe_.get(), buffer.data(), buffer.size()) : 0;
    if (size > 0) {
      const auto* const end = std::find(buffer.data(), buffer.data() + size, '\0');
      text_.append(buffer.data(), static_cast<size_t>(end - buffer.data()));
      complete_ = end != buffer.data() + size;
      if (text_.size() <= kLongest) return true;
      text_.clear();
    } else if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
      return false;
    }
    pipe_.reset();  // poll() ignores it from now on
    return false;
  }

  Descriptor pipe_;
  std::string text_;
  bool complete_ = false;
};

std::string describe_crash(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("ended the process with exit code {}", WEXITSTATUS(status));
  const char* name = ::sigabbrev_np(WTERMSIG(status));
  return name == nullptr ? fmt::format("crashed with signal {}", WTERMSIG(status))
                         : fmt::format("crashed with SIG{}", name);
}

std::vector<std::string> own_environment() {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

QueryReply parse_reply(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return {BP_INTERNAL, "gave a malformed reply"};
  return {json.value("status", static_cast<int32_t>(BP_INTERNAL)), json.value("text", "")};
}

}  // namespace

QueryReply query(const std::string& kind, const std::string& backend, const std::string& doing,
                 std::chrono::nanoseconds timeout) {
  Pipe pipe = make_pipe();
  const Descriptor null = open_null_device();
  Child child;
  child.path = "/proc/self/exe";
  child.arguments = {"backplane", kQueryCommand, kind, backend};
  child.environment = own_environment();
  child.input = null.get();
  child.output = 2;  // keeps plugin output out of the command's stdout
  child.extra = pipe.write.get();
  const Started started = start(child);
  if (started.exec_errno != 0) {
    reap(started.pid);
    throw Failure(kFailed, fmt::format("cannot start this command again: {}", errno_text(started.exec_errno)));
  }
  pipe.write.reset();
  ReplyReader reader(std::move(pipe.read));
  const bool in_time = reader.listen(started.pid, Clock::now() + timeout);
  const int status = kill_and_reap(started.pid);
  if (reader.complete()) return parse_reply(reader.text());
  constexpr const char* kRemedy = "remove or update this plugin";
  if (in_time) return {BP_INTERNAL, fmt::format("{} {}; {}", describe_crash(status), doing, kRemedy)};
  const double seconds = std::chrono::duration<double>(timeout).count();
  return {BP_INTERNAL, fmt::format("did not answer within {} s {}; {}", seconds, doing, kRemedy)};
}

}  // namespace backplane::tool
