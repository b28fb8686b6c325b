// SPDX-License-Identifier: Apache-2.0
//
// A job whose ranks are processes that the test commands, stops and kills. Every wait has a deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace backplane::test {

using Variables = std::map<std::string, std::string>;

// One process that runs rank.cpp. Killed at the end if it still lives.
class Process {
 public:
  // `within`: a command that runs the program it is given, "nsenter ...", looked for in PATH.
  explicit Process(const Variables& environment, const std::vector<std::string>& within = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void tell(const std::string& command);
  // The next line it says; fails the test if none comes within the patience.
  std::string hear();
  std::string ask(const std::string& command) {
    tell(command);
    return hear();
  }
  void signal(int number) const;
  // Kills it and waits until it is gone.
  void kill();
  // Waits for its end; the status of waitpid.
  int wait();

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string heard_;
};

// Who serves the store.
enum class Host { kLauncher, kRankZero, kFile };  // kFile: nobody, the ranks meet in a file

class Job {
 public:
  // Starts `world` ranks; `init` tells them all to make the group, and expects that they can.
  Job(const std::string& backend, int world, Host host = Host::kLauncher, const Variables& more = {});

  Process& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int world() const { return static_cast<int>(ranks_.size()); }
  // The process that serves the store for Host::kLauncher.
  Process& server() { return *server_; }
  const std::string& port() const { return port_; }

  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void init();
  void tell(const std::vector<int>& ranks, const std::string& command);
  // What each of them answers to a command.
  std::vector<std::string> ask(const std::vector<int>& ranks, const std::string& command);
  std::vector<std::string> hear(const std::vector<int>& ranks);
  // All ranks but these.
  std::vector<int> others(const std::vector<int>& without) const;
  // "rank 3 (host, pid 17)"
  std::string name(int rank);
  // Ends those that are left in peace.
  void quit(const std::vector<int>& ranks);

 private:
  std::unique_ptr<Process> server_;
  std::string port_;
  std::string directory_;  // for Host::kFile
  std::vector<std::unique_ptr<Process>> ranks_;
};

}  // namespace backplane::test
