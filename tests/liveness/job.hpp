// SPDX-License-Identifier: Apache-2.0
//
// A job whose ranks are processes, to which the test sends commands and signals. Every wait has a deadline.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backplane/base/subprocess.hpp"

namespace backplane::test {

using Variables = std::map<std::string, std::string>;

// One process that runs rank.cpp. The destructor kills it.
class Process {
 public:
  // `within`: a command in PATH that runs the program, such as "nsenter ...".
  explicit Process(const Variables& environment, const std::vector<std::string>& within = {});

  pid_t pid() const { return process_.pid(); }
  void send(const std::string& command);
  // Returns the next line of output. Fails the test if there is none within 120 s.
  std::string receive();
  std::string call(const std::string& command) {
    send(command);
    return receive();
  }
  void signal(int number) const;
  // Returns when the process has ended.
  void kill() { process_.kill(); }
  // Waits until the process ends. Returns the status of waitpid.
  int wait();

 private:
  base::Subprocess process_;
  base::Descriptor in_;
  base::Descriptor out_;
  std::string input_;
};

// The process that serves the store.
enum class Host { kLauncher, kRankZero, kFile };  // kFile: a file store, without a server

class Job {
 public:
  // Starts `world` ranks.
  Job(const std::string& backend, int world, Host host = Host::kLauncher, const Variables& more = {});

  Process& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int world() const { return static_cast<int>(ranks_.size()); }
  // The process that serves the store for Host::kLauncher.
  Process& server() { return *server_; }
  const std::string& port() const { return port_; }

  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Starts one more process, without a rank. Returns its number here.
  int add_process();
  // Creates the group on all ranks and expects success.
  void init();
  void send(const std::vector<int>& ranks, const std::string& command);
  // Sends a command and returns the replies.
  std::vector<std::string> call(const std::vector<int>& ranks, const std::string& command);
  std::vector<std::string> receive(const std::vector<int>& ranks);
  // All ranks except these.
  std::vector<int> others(const std::vector<int>& without) const;
  // "rank 3 (host, pid 17)"
  std::string name(int rank);
  // Ends these ranks in an orderly way.
  void quit(const std::vector<int>& ranks);

 private:
  std::unique_ptr<Process> server_;
  std::string port_;
  std::string directory_;  // for Host::kFile
  Variables variables_;    // of each process
  std::vector<std::unique_ptr<Process>> ranks_;
};

}  // namespace backplane::test
