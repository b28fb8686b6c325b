// SPDX-License-Identifier: Apache-2.0
#include "common/query.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "backplane/backplane.h"
#include "backplane/base/subprocess.hpp"
#include "common/failure.hpp"
#include "common/files.hpp"

namespace backplane::tool {
namespace {

constexpr size_t kLongest = size_t{16} * 1024 * 1024;

std::string describe_crash(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("ended the process with exit code {}", WEXITSTATUS(status));
  return fmt::format("crashed with {}", base::signal_name(WTERMSIG(status)));
}

QueryReply parse_reply(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return {BP_INTERNAL, "gave a malformed reply"};
  return {json.value("status", static_cast<int32_t>(BP_INTERNAL)), json.value("text", "")};
}

}  // namespace

QueryReply query(const std::string& kind, const std::string& backend, const std::string& doing,
                 std::chrono::nanoseconds timeout) {
  base::Pipe pipe = make_pipe();
  base::set_nonblocking(pipe.read.get());
  base::Subprocess child = base::Subprocess::spawn(
      {.path = "/proc/self/exe",
       .arguments = {"backplane", kQueryCommand, kind, backend},
       // Keeps plugin output out of the command's stdout.
       .descriptors = {{0, base::Command::kNullDevice}, {1, 2}, {kReplyDescriptor, pipe.write.get()}}});
  if (!child) fail_system("cannot start a process");
  if (child.exec_error() != 0) {
    throw Failure(kFailed, fmt::format("cannot start this command again: {}", errno_text(child.exec_error())));
  }
  pipe.write.reset();
  std::string reply;
  const auto take = [&reply](std::string_view bytes) {
    if (reply.size() <= kLongest) reply += bytes;
  };
  const bool in_time = child.read(pipe.read.get(), base::Deadline::after(timeout.count()), take);
  const int status = child.kill();
  if (const size_t end = reply.find('\0'); end != std::string::npos) return parse_reply(reply.substr(0, end));
  constexpr const char* kRemedy = "remove or update this plugin";
  if (in_time) return {BP_INTERNAL, fmt::format("{} {}; {}", describe_crash(status), doing, kRemedy)};
  const double seconds = std::chrono::duration<double>(timeout).count();
  return {BP_INTERNAL, fmt::format("did not answer within {} s {}; {}", seconds, doing, kRemedy)};
}

}  // namespace backplane::tool
