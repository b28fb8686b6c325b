// SPDX-License-Identifier: Apache-2.0
//
// Several hosts on this machine: network namespaces whose "eth0" hangs by a cable (veth) on a switch (a bridge in a
// namespace of its own). Nothing of it is in the machine's own network; the kernel removes all of it when the last
// process inside has ended, which it does when the test ends, however it does.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "liveness/job.hpp"

namespace backplane::test {

class Network {
 public:
  // Why it cannot be made here; empty if it can.
  static std::string obstacle();

  // Host h has the name hostH and the address 10.77.0.(1 + h).
  explicit Network(int hosts);

  static std::string address(int host) { return "10.77.0." + std::to_string(1 + host); }
  static std::string name(int host) { return "host" + std::to_string(host); }
  // The command that runs another one on that host.
  std::vector<std::string> on(int host) const;

  // Each ends a host's connection in its own way.
  void pull_cable(int host);  // both ends see it
  void take_down(int host);   // the host's own interface
  void swallow(int host);     // the switch drops everything; no host sees it

 private:
  void run(const Process& where, const std::string& command) const;

  std::unique_ptr<Process> switch_;
  std::vector<std::unique_ptr<Process>> hosts_;
};

}  // namespace backplane::test
