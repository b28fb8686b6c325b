// SPDX-License-Identifier: Apache-2.0
#include "liveness/job.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <stdexcept>

#include "support/free_port.hpp"

namespace backplane::test {
namespace {

constexpr std::chrono::nanoseconds kReplyTimeout = std::chrono::seconds(120);  // for a busy machine under a sanitizer

}  // namespace

Process::Process(const Variables& environment, const std::vector<std::string>& within) {
  ::signal(SIGPIPE, SIG_IGN);  // a command to a dead process fails without a signal
  base::Pipe in = base::Pipe::open();
  base::Pipe out = base::Pipe::open();
  base::set_nonblocking(out.read.get());
  std::vector<std::string> words = {"env"};  // searches PATH
  words.insert(words.end(), within.begin(), within.end());
  words.emplace_back(BACKPLANE_TEST_LIVENESS_RANK);
  process_ = base::Subprocess::spawn({.path = "/usr/bin/env",
                                      .arguments = std::move(words),
                                      .environment = base::environment_with(environment),
                                      .descriptors = {{0, in.read.get()}, {1, out.write.get()}}});
  if (!process_ || process_.exec_error() != 0) throw std::runtime_error("cannot start a process");
  in_ = std::move(in.write);
  out_ = std::move(out.read);
}

void Process::send(const std::string& command) {
  const std::string line = command + "\n";
  EXPECT_EQ(::write(in_.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

std::string Process::receive() {
  const auto deadline = base::Deadline::after(kReplyTimeout.count());
  bool open = true;
  size_t newline = std::string::npos;
  while ((newline = input_.find('\n')) == std::string::npos) {
    if (!open) return "the end";
    pollfd polled = {out_.get(), POLLIN, 0};
    if (::poll(&polled, 1, base::poll_timeout(deadline)) <= 0) {
      ADD_FAILURE() << "process " << pid() << " prints no line";
      return "silence";
    }
    open = base::read_available(out_.get(), [this](std::string_view bytes) { input_ += bytes; });
  }
  std::string line = input_.substr(0, newline);
  input_.erase(0, newline + 1);
  return line;
}

void Process::signal(int number) const { EXPECT_EQ(::kill(pid(), number), 0); }

int Process::wait() {
  const std::optional<int> status = process_.wait(base::Deadline::after(kReplyTimeout.count()));
  if (status) return *status;
  ADD_FAILURE() << "process " << pid() << " does not end";
  kill();
  return -1;
}

Job::Job(const std::string& backend, int world, Host host, const Variables& more) {
  Variables common = more;
  common["BACKPLANE_BACKEND"] = backend;
  // As tests/support/groups.hpp has it for threads.
  if (backend.find('+') != std::string::npos) common["BACKPLANE_IMAGINED_HOSTS"] = "0,1,1,0,2,2,0,1,2";
  common["MASTER_ADDR"] = "127.0.0.1";
  common["WORLD_SIZE"] = std::to_string(world);
  common["BACKPLANE_JOB_ID"] = "";
  if (host == Host::kLauncher) {
    server_ = std::make_unique<Process>(common);
    port_ = server_->call("serve").substr(sizeof "port");
    common["BACKPLANE_STORE_HOSTED"] = "1";
  } else {
    port_ = std::to_string(free_port());
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
  variables_ = common;
  variables_.erase("RANK");
}

int Job::add_process() {
  ranks_.push_back(std::make_unique<Process>(variables_));
  return world() - 1;
}

Job::~Job() {
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

void Job::init() {
  const std::vector<int> all = others({});
  for (const std::string& answer : call(all, "init")) EXPECT_EQ(answer, "ok");
}

void Job::send(const std::vector<int>& ranks, const std::string& command) {
  for (const int rank : ranks) (*this)[rank].send(command);
}

std::vector<std::string> Job::receive(const std::vector<int>& ranks) {
  std::vector<std::string> answers;
  for (const int rank : ranks) answers.push_back((*this)[rank].receive());
  return answers;
}

std::vector<std::string> Job::call(const std::vector<int>& ranks, const std::string& command) {
  send(ranks, command);
  return receive(ranks);
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
  send(ranks, "quit");
  for (const int rank : ranks) {
    EXPECT_EQ((*this)[rank].receive(), "ok");
    EXPECT_EQ((*this)[rank].wait(), 0);
  }
}

}  // namespace backplane::test
