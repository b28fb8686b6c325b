// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/subprocess.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>

namespace backplane::base {
namespace {

constexpr int64_t kLong = INT64_C(60'000'000'000);

Command shell(const std::string& script, std::map<int, int> descriptors = {}) {
  return {.path = "/bin/sh", .arguments = {"sh", "-c", script}, .descriptors = std::move(descriptors)};
}

std::string output_of(const std::string& script, const std::map<int, int>& descriptors, Pipe pipe) {
  set_nonblocking(pipe.read.get());
  Subprocess child = Subprocess::spawn(shell(script, descriptors));
  pipe.write.reset();
  std::string output;
  EXPECT_TRUE(child.read(pipe.read.get(), Deadline::after(kLong), [&output](auto bytes) { output += bytes; }));
  return output;
}

TEST(SubprocessTest, ReportsExitCodesAndSignals) {
  const int code = Subprocess::spawn(shell("exit 3")).wait().value();
  EXPECT_TRUE(WIFEXITED(code));
  EXPECT_EQ(WEXITSTATUS(code), 3);
  const int killed = Subprocess::spawn(shell("kill -SEGV $$")).wait().value();
  ASSERT_TRUE(WIFSIGNALED(killed));
  EXPECT_EQ(signal_name(WTERMSIG(killed)), "SIGSEGV");
  EXPECT_EQ(signal_name(99), "signal 99");
}

// As in a program that ignores SIGCHLD, or inherited that.
TEST(SubprocessTest, AChildThatTheKernelReapsDoesNotCountAsSuccessful) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  for (const char* const script : {"exit 3", "kill -SEGV $$"}) {
    Subprocess child = Subprocess::spawn(shell(script));
    EXPECT_TRUE(child.read(-1, Deadline::after(kLong), [](auto) {}));
    const siginfo_t how = child.end().value();
    EXPECT_EQ(how.si_code, CLD_EXITED);
    EXPECT_EQ(how.si_status, Subprocess::kUnknownEnd);
    const int status = child.wait().value();
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), Subprocess::kUnknownEnd);
  }
  ::signal(SIGCHLD, before);
}

// The next line, or what arrives of it in time.
std::string line_of(int fd) {
  std::string line;
  const Deadline deadline = Deadline::after(kLong);
  for (char c = 0; c != '\n'; line += c) {
    pollfd polled = {fd, POLLIN, 0};
    if (::poll(&polled, 1, poll_timeout(deadline)) <= 0 || ::read(fd, &c, 1) != 1) break;
  }
  return line;
}

// A shell whose child reports SIGTERM. `send` sends it.
template <typename Send>
void expect_signal_of_group(const Send& send) {
  Pipe pipe = Pipe::open();
  Subprocess child = Subprocess::spawn(
      shell("(trap 'echo ended; exit' TERM; echo ready; sleep 100 & wait) & wait", {{1, pipe.write.get()}}));
  pipe.write.reset();
  ASSERT_EQ(line_of(pipe.read.get()), "ready\n");
  send(child);
  EXPECT_EQ(line_of(pipe.read.get()), "ended\n");  // before wait(), which kills the group
  EXPECT_EQ(WTERMSIG(child.wait().value()), SIGTERM);
}

TEST(SubprocessTest, SignalsItsGroup) {
  expect_signal_of_group([](const Subprocess& child) { child.signal(SIGTERM); });
}

TEST(SubprocessTest, SignalsItsGroupByItsPidfd) {
  constexpr unsigned kProcessGroup = 4;  // since Linux 6.9
  const Descriptor own = open_pidfd(::getpid());
  if (::syscall(SYS_pidfd_send_signal, own.get(), 0, nullptr, kProcessGroup) != 0 && errno != ESRCH) {
    GTEST_SKIP() << "pidfds of groups do not exist here";
  }
  constexpr pid_t kNobody = INT32_MAX;
  expect_signal_of_group([](Subprocess& child) { signal_group(child.fd(), kNobody, SIGTERM); });
}

TEST(SubprocessTest, ReportsThatAProgramCannotBeExecuted) {
  Subprocess child = Subprocess::spawn({.path = "/does/not/exist", .arguments = {"x"}});
  EXPECT_TRUE(child);
  EXPECT_EQ(child.exec_error(), ENOENT);
  EXPECT_EQ(WEXITSTATUS(child.wait().value()), 126);
}

TEST(SubprocessTest, PlacesDescriptors) {
  Pipe pipe = Pipe::open();
  const int write = pipe.write.get();
  EXPECT_EQ(output_of("cat; echo out; echo error >&2; echo five >&5",
                      {{0, Command::kNullDevice}, {1, write}, {2, write}, {5, write}}, std::move(pipe)),
            "out\nerror\nfive\n");
}

TEST(SubprocessTest, PlacesDescriptorsThatOverlap) {
  Pipe first = Pipe::open();
  Pipe second = Pipe::open();
  const int low = first.write.get();
  const int high = second.write.get();
  set_nonblocking(second.read.get());
  // Each becomes the number of the other.
  const std::string script = "echo low >&" + std::to_string(low) + "; echo high >&" + std::to_string(high);
  EXPECT_EQ(output_of(script, {{low, high}, {high, low}}, std::move(first)), "high\n");
  std::string other;
  read_available(second.read.get(), [&other](auto bytes) { other += bytes; });
  EXPECT_EQ(other, "low\n");
}

TEST(SubprocessTest, PassesAnEnvironment) {
  Pipe pipe = Pipe::open();
  set_nonblocking(pipe.read.get());
  Command command = shell("echo $A $HOME", {{1, pipe.write.get()}});
  command.environment = environment_with({{"A", "1"}, {"HOME", "x"}});
  Subprocess child = Subprocess::spawn(command);
  pipe.write.reset();
  std::string output;
  EXPECT_TRUE(child.read(pipe.read.get(), Deadline::after(kLong), [&output](auto bytes) { output += bytes; }));
  EXPECT_EQ(output, "1 x\n");
}

TEST(SubprocessTest, WaitsUntilADeadline) {
  Subprocess child = Subprocess::fork([]() -> int {
    for (;;) ::pause();
  });
  EXPECT_FALSE(child.wait(Deadline::after(0)));
  EXPECT_FALSE(child.wait(Deadline::after(1'000'000)));
  EXPECT_FALSE(child.end());
  child.signal(SIGTERM);
  const std::optional<int> status = child.wait(Deadline::after(kLong));
  ASSERT_TRUE(status && WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), SIGTERM);
}

TEST(SubprocessTest, ForksAFunction) {
  Subprocess child = Subprocess::fork([] { return ::getsid(0) == ::getpid() ? 7 : 8; });
  EXPECT_EQ(WEXITSTATUS(child.wait().value()), 7);
}

TEST(SubprocessTest, KillsWhatIsLeftOfTheGroup) {
  Pipe pipe = Pipe::open();
  Subprocess child = Subprocess::spawn(shell("sleep 1000 &", {{1, pipe.write.get()}}));
  pipe.write.reset();
  EXPECT_EQ(WEXITSTATUS(child.wait().value()), 0);
  char byte = 0;
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0);  // the last process with the other end has ended
}

TEST(SubprocessTest, AForkedCopyDoesNotKill) {
  Subprocess child = Subprocess::fork([]() -> int {
    for (;;) ::pause();
  });
  Subprocess::fork([&child] {
    Subprocess copy = std::move(child);
    return 0;
  }).wait();
  EXPECT_FALSE(child.end());
}

}  // namespace
}  // namespace backplane::base
