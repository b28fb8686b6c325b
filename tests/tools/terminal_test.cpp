// SPDX-License-Identifier: Apache-2.0
//
// `backplane run` on a terminal: colours, input, Ctrl-C; and the progress line of `backplane bench`.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "tools/command.hpp"

namespace backplane::test {
namespace {

class Terminal {
 public:
  explicit Terminal(std::vector<std::string> command) {
    std::vector<char*> arguments;
    for (auto& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
  }
  ~Terminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& text) const {
    ASSERT_EQ(::write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  bool shows(const std::string& text) {
    return eventually([this, &text] {
      read();
      return contains(shown_, text);
    });
  }
  const std::string& shown() const { return shown_; }
  int wait() {
    int status = 0;
    const bool ended = eventually([this, &status] {
      read();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    EXPECT_TRUE(ended) << shown_;
    if (ended) pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  void read() {
    std::array<char, 4096> buffer;
    pollfd readable{fd_, POLLIN, 0};
    if (::poll(&readable, 1, 0) != 1) return;
    const ssize_t size = ::read(fd_, buffer.data(), buffer.size());
    if (size > 0) shown_.append(buffer.data(), static_cast<size_t>(size));
  }

  int fd_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
};

std::vector<std::string> two_ranks(const std::string& script, const std::string& no_color) {
  return {"/usr/bin/env", "TERM=xterm", "NO_COLOR=" + no_color, BACKPLANE_TEST_COMMAND, "run", "-n", "2", "sh",
          "-c",           script};
}

TEST(Terminal, RankZeroReadsTheTerminal) {
  Terminal terminal(two_ranks("read word; echo rank $RANK got $word.", ""));
  ASSERT_TRUE(terminal.shows("\x1b[32m[1]\x1b[0m rank 1 got .")) << terminal.shown();
  terminal.type("hello\n");
  EXPECT_TRUE(terminal.shows("\x1b[36m[0]\x1b[0m rank 0 got hello.")) << terminal.shown();
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(Terminal, CtrlCReachesAllRanks) {
  Terminal terminal(two_ranks("trap 'echo caught; exit 0' INT; echo ready $RANK; while :; do sleep 0.05; done", "1"));
  ASSERT_TRUE(terminal.shows("[0] ready 0") && terminal.shows("[1] ready 1")) << terminal.shown();
  terminal.type("\x03");
  EXPECT_TRUE(terminal.shows("[0] caught") && terminal.shows("[1] caught")) << terminal.shown();
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_FALSE(contains(terminal.shown(), "\x1b[")) << terminal.shown();
}

// The state of a process: 'T' if it is stopped.
char state_of(pid_t pid) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = status.rfind(") ");
  return name_end == std::string::npos ? '?' : status[name_end + 2];
}

// Quoted for the shell.
std::string quoted_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) command += "'" + word + "' ";
  return command;
}

TEST(Terminal, CtrlZStopsTheJobUntilItIsResumed) {
  const ScopedDirectory place;
  const auto job = two_ranks("echo $$ > " + place.file("rank$RANK") + "; while ! [ -e " + place.file("go") +
                                 " ]; do sleep 0.05; done; echo went on",
                             "1");
  Terminal terminal({"/bin/sh", "-c", "set -m; " + quoted_command(job) + "; echo stopped; read line; fg"});
  const pid_t ranks[] = {pid_in(place.file("rank0")), pid_in(place.file("rank1"))};
  terminal.type("\x1a");
  ASSERT_TRUE(terminal.shows("stopped")) << terminal.shown();
  for (const pid_t pid : ranks) {
    EXPECT_TRUE(eventually([pid] { return state_of(pid) == 'T'; })) << pid << state_of(pid);
  }
  std::ofstream(place.file("go")) << "go";
  terminal.type("\n");
  EXPECT_TRUE(terminal.shows("[0] went on") && terminal.shows("[1] went on")) << terminal.shown();
  EXPECT_EQ(terminal.wait(), 0);
}

// As under ssh, or as the first process of a container.
TEST(Terminal, CtrlZStopsNothingWithoutAShell) {
  const ScopedDirectory place;
  Terminal terminal(two_ranks("trap 'echo resumed' CONT; echo ready; while ! [ -e " + place.file("go") +
                                  " ]; do sleep 0.05; done; echo went on",
                              "1"));
  ASSERT_TRUE(terminal.shows("[0] ready") && terminal.shows("[1] ready")) << terminal.shown();
  terminal.type("\x1a");
  EXPECT_TRUE(terminal.shows("[0] resumed") && terminal.shows("[1] resumed")) << terminal.shown();
  std::ofstream(place.file("go")) << "go";
  EXPECT_TRUE(terminal.shows("[0] went on") && terminal.shows("[1] went on")) << terminal.shown();
  EXPECT_EQ(terminal.wait(), 0);
}

// One line that is overwritten, and erased at the end.
TEST(Terminal, BenchShowsProgress) {
  Terminal terminal({BACKPLANE_TEST_COMMAND, "bench", "--backend", "inproc", "--sizes", "4,1K", "--seconds", "0.001"});
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_TRUE(
      terminal.shows("\rall_reduce of 4 B: inproc (1 of 2)\x1b[K"
                     "\rall_reduce of 1024 B: inproc (2 of 2)\x1b[K\r\x1b[K"))
      << terminal.shown();
}

}  // namespace
}  // namespace backplane::test
