// SPDX-License-Identifier: Apache-2.0
//
// The launcher's end of PMIx: Open MPI starts as one world in the processes that it serves. A program of its own,
// backplane-pmix-server, holds libpmix and its thread. Linux only.
#pragma once

#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "deadline.hpp"
#include "pmix_link.hpp"
#include "subprocess.hpp"

namespace backplane::base {

// One host's part of a job with equally many ranks on each host, numbered host by host. Used by one thread. A copy made
// by fork may only be destroyed.
class PmixServer {
 public:
  using Variables = std::map<std::string, std::string>;
  struct Job {
    std::string name;                // the same on all hosts; every process that knows it may connect
    std::vector<std::string> hosts;  // distinct
    int32_t host = 0;                // the index of this one
    int32_t ranks_per_host = 1;
  };

  static constexpr std::string_view kNamePrefix = "backplane-";
  // A name for a job of one host, which others cannot guess.
  static std::string random_name() {
    std::random_device entropy;
    std::string name = std::string(kNamePrefix) + std::to_string(entropy());
    for (int i = 1; i < 4; ++i) name += "-" + std::to_string(entropy());
    return name;
  }

  // Starts the program at `path`. Blocks until it serves, at most 30 s. Throws std::runtime_error. `enter`, if any, is
  // called in the new process first, for instance to enter a namespace; then this process must have no other threads.
  PmixServer(const std::string& path, const Job& job, const std::function<bool()>& enter = {}) : owner_(::getpid()) {
    try {
      const Deadline deadline = Deadline::after(kStartNs);
      start(path, enter);
      describe(job);
      while (!ready_) take(receive(path, deadline));
      if (variables_.size() != static_cast<size_t>(job.ranks_per_host)) {
        throw std::runtime_error(path + " is not of this version; install all of Backplane anew");
      }
    } catch (const PmixLink::Closed&) {
      end();
      throw std::runtime_error(path + " has ended before it served; check its libraries with ldd");
    } catch (const std::exception&) {
      end();
      throw;
    }
  }

  // Ends the program, also while ranks are connected. Waits for it, at most 10 s, and then kills it.
  ~PmixServer() { end(); }
  PmixServer(const PmixServer&) = delete;
  PmixServer& operator=(const PmixServer&) = delete;

  // The variables that the rank needs in its environment.
  const Variables& variables(int32_t local_rank) const { return variables_[static_cast<size_t>(local_rank)]; }

  // The process of this rank has ended. If it had not started MPI, the MPI of the others fails. Blocks at most 10 s, if
  // the server does not read.
  void rank_ended(int32_t rank) {
    try {
      link_.send({"ended", std::to_string(rank)});
    } catch (const PmixLink::Closed&) {
      link_.close();  // the server has ended, or hangs
    }
  }

 private:
  static constexpr int64_t kStartNs = INT64_C(30) * 1'000'000'000;
  static constexpr int64_t kEndNs = INT64_C(10) * 1'000'000'000;
  static constexpr time_t kSendSeconds = 10;

  void end() {
    if (owner_ != ::getpid()) return;
    link_.close();
    if (process_) process_.wait(Deadline::after(kEndNs));
    if (process_) process_.kill();
    std::error_code ignored;
    for (const std::string& each : directories_) std::filesystem::remove_all(each, ignored);  // if it was killed
  }

  void start(const std::string& path, const std::function<bool()>& enter) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::system_error(errno, std::system_category(), "cannot open a socket pair");
    }
    const Descriptor theirs(ends[1]);
    link_ = PmixLink(Descriptor(ends[0]));
    const timeval limit = {kSendSeconds, 0};
    ::setsockopt(link_.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    Command command;
    command.path = path;
    command.arguments = {path};
    command.environment = own_environment();
    command.descriptors = {{STDIN_FILENO, theirs.get()}, {STDOUT_FILENO, Command::kNullDevice}};
    if (enter) {
      process_ = Subprocess::fork([&enter, &command, &theirs] { return execute(enter, command, theirs.get()); });
      if (!process_) throw std::system_error(errno, std::system_category(), "cannot start a process");
      return;
    }
    process_ = Subprocess::spawn(std::move(command));
    const int error = process_ ? process_.exec_error() : errno;
    if (error != 0) throw std::runtime_error("cannot start " + path + ": " + std::strerror(error));
  }

  static int execute(const std::function<bool()>& enter, Command& command, int socket) {
    if (!enter()) return 1;
    std::vector<char*> environment;
    for (std::string& each : command.environment) environment.push_back(each.data());
    environment.push_back(nullptr);
    char* const arguments[] = {command.path.data(), nullptr};
    ::sigprocmask(SIG_SETMASK, &command.signal_mask, nullptr);
    ::dup2(socket, STDIN_FILENO);
    ::execve(command.path.c_str(), arguments, environment.data());
    return 1;
  }

  // Without what an outer launcher has set. The user's settings of libpmix, PMIX_MCA_*, stay.
  static std::vector<std::string> own_environment() {
    std::vector<std::string> result;
    for (std::string& entry : environment_with({})) {
      if (!entry.starts_with("PMIX_") || entry.starts_with("PMIX_MCA_")) result.push_back(std::move(entry));
    }
    return result;
  }

  void describe(const Job& job) {
    link_.send({"name", job.name});
    for (const std::string& host : job.hosts) link_.send({"host", host});
    link_.send({"node", std::to_string(job.host)});
    link_.send({"ranks", std::to_string(job.ranks_per_host)});
    link_.send({"start", ""});
  }

  PmixLink::Message receive(const std::string& path, const Deadline& deadline) {
    while (!link_.has_message()) {
      pollfd polled = {link_.fd(), POLLIN, 0};
      const int ready = ::poll(&polled, 1, poll_timeout(deadline));
      if (ready == 0) throw std::runtime_error(path + " did not serve within 30 s");
      if (ready > 0) link_.read();
    }
    return link_.receive();
  }

  void take(const PmixLink::Message& message) {
    if (message.kind == "variable") {
      const size_t equals = message.text.find('=');
      unfinished_[message.text.substr(0, equals)] = message.text.substr(equals + 1);
    } else if (message.kind == "rank") {
      variables_.push_back(std::exchange(unfinished_, {}));
    } else if (message.kind == "directory") {
      directories_.push_back(message.text);
    } else if (message.kind == "ready") {
      ready_ = true;
    } else if (message.kind == "error") {
      throw std::runtime_error(message.text);
    }
  }

  const pid_t owner_;
  PmixLink link_{Descriptor()};
  Subprocess process_;
  std::vector<Variables> variables_;
  Variables unfinished_;
  std::vector<std::string> directories_;  // of temporary files
  bool ready_ = false;
};

}  // namespace backplane::base
