// SPDX-License-Identifier: Apache-2.0
#include "liveness/job.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "store/store.hpp"

namespace backplane::test {
namespace {

constexpr std::chrono::seconds kPatience{120};  // for a busy machine under a sanitizer

std::vector<std::string> with_environment(const Variables& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (added.count(text.substr(0, text.find('='))) == 0) result.push_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(name + "=" + value);
  return result;
}

// For exec; ends with NULL.
std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  return {ends[0], ends[1]};
}

}  // namespace

Process::Process(const Variables& environment, const std::vector<std::string>& within) {
  ::signal(SIGPIPE, SIG_IGN);  // a command for a process that has died is lost
  const Pipe in = make_pipe();
  const Pipe out = make_pipe();
  std::vector<std::string> entries = with_environment(environment);
  std::vector<std::string> words = within;
  words.emplace_back(BACKPLANE_TEST_LIVENESS_RANK);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, in.read, 0);
  ::posix_spawn_file_actions_adddup2(&files, out.write, 1);
  const int failed =
      ::posix_spawnp(&pid_, words[0].c_str(), &files, nullptr, pointers(words).data(), pointers(entries).data());
  ::posix_spawn_file_actions_destroy(&files);
  ::close(in.read);
  ::close(out.write);
  in_ = in.write;
  out_ = out.read;
  if (failed != 0) throw std::runtime_error("cannot start " + words[0]);
}

Process::~Process() {
  if (pid_ > 0) kill();
  ::close(in_);
  ::close(out_);
}

void Process::tell(const std::string& command) {
  const std::string line = command + "\n";
  EXPECT_EQ(::write(in_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

std::string Process::hear() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  size_t newline = heard_.find('\n');
  while (newline == std::string::npos) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd polled = {out_, POLLIN, 0};
    std::array<char, 4096> bytes{};
    if (left <= 0 || ::poll(&polled, 1, static_cast<int>(left)) <= 0) {
      ADD_FAILURE() << "process " << pid_ << " says nothing";
      return "silence";
    }
    const ssize_t got = ::read(out_, bytes.data(), bytes.size());
    if (got <= 0) return "the end";
    heard_.append(bytes.data(), static_cast<size_t>(got));
    newline = heard_.find('\n');
  }
  std::string line = heard_.substr(0, newline);
  heard_.erase(0, newline + 1);
  return line;
}

void Process::signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }

void Process::kill() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int Process::wait() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "process " << pid_ << " does not end";
      kill();
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // between two looks
  }
  pid_ = -1;
  return status;
}

Job::Job(const std::string& backend, int world, Host host, const Variables& more) {
  Variables common = more;
  common["BACKPLANE_BACKEND"] = backend;
  common["MASTER_ADDR"] = "127.0.0.1";
  common["WORLD_SIZE"] = std::to_string(world);
  common["BACKPLANE_JOB_ID"] = "";
  if (host == Host::kLauncher) {
    server_ = std::make_unique<Process>(common);
    port_ = server_->ask("serve").substr(sizeof "port");
    common["BACKPLANE_STORE_HOSTED"] = "1";
  } else {
    port_ = std::to_string(core::make_tcp_store_server({})->port());
    common["BACKPLANE_STORE_HOSTED"] = "0";
  }
  if (host == Host::kFile) {
    std::string name = (std::filesystem::temp_directory_path() / "bp-liveness-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no directory");
    directory_ = name;
    common["TEST_INIT_METHOD"] = "file://" + directory_ + "/store";
  }
  common["MASTER_PORT"] = port_;
  for (int rank = 0; rank < world; ++rank) {
    common["RANK"] = std::to_string(rank);
    ranks_.push_back(std::make_unique<Process>(common));
  }
}

Job::~Job() {
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

void Job::init() {
  const std::vector<int> all = others({});
  for (const std::string& answer : ask(all, "init")) EXPECT_EQ(answer, "ok");
}

void Job::tell(const std::vector<int>& ranks, const std::string& command) {
  for (const int rank : ranks) (*this)[rank].tell(command);
}

std::vector<std::string> Job::hear(const std::vector<int>& ranks) {
  std::vector<std::string> answers;
  for (const int rank : ranks) answers.push_back((*this)[rank].hear());
  return answers;
}

std::vector<std::string> Job::ask(const std::vector<int>& ranks, const std::string& command) {
  tell(ranks, command);
  return hear(ranks);
}

std::vector<int> Job::others(const std::vector<int>& without) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world(); ++rank) {
    if (std::find(without.begin(), without.end(), rank) == without.end()) ranks.push_back(rank);
  }
  return ranks;
}

std::string Job::name(int rank) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "rank " + std::to_string(rank) + " (" + host.data() + ", pid " + std::to_string((*this)[rank].pid()) + ")";
}

void Job::quit(const std::vector<int>& ranks) {
  tell(ranks, "quit");
  for (const int rank : ranks) {
    EXPECT_EQ((*this)[rank].hear(), "ok");
    EXPECT_EQ((*this)[rank].wait(), 0);
  }
}

}  // namespace backplane::test
