// SPDX-License-Identifier: Apache-2.0
//
// A job with one rank on each of several hosts. A separate process on the host of rank 0 serves the store.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "hosts/network.hpp"

namespace backplane::test {

class HostsJob {
 public:
  // Starts the ranks. `limit`: BACKPLANE_HEARTBEAT_LIMIT.
  HostsJob(int hosts, const std::string& backend, const std::string& limit);

  Network& network() { return network_; }
  Process& rank(int number) { return *ranks_[static_cast<size_t>(number)]; }
  void send(const std::vector<int>& ranks, const std::string& command);
  void expect_all(const std::vector<int>& ranks, const std::string& reply);
  // Ends these ranks in an orderly way.
  void quit(const std::vector<int>& ranks);
  std::vector<int> others(int without) const;
  std::vector<int> all() const { return others(-1); }

 private:
  Network network_;
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace backplane::test
