// SPDX-License-Identifier: Apache-2.0
//
// Simulates hosts by network namespaces. A veth pair connects the "eth0" of each to a switch, which is a bridge in a
// separate namespace. The machine's own network is unaffected. The kernel removes the namespaces when their last
// process ends, which is at the latest when the test ends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "liveness/job.hpp"

namespace backplane::test {

class Network {
 public:
  // Why namespaces are unavailable; empty if they are available.
  static std::string obstacle();

  // Host h has the name hostH and the addresses 10.77.0.(1 + h) and fd77::(1 + h). All have a docker0 with the same
  // address.
  explicit Network(int hosts);

  static std::string address(int host) { return "10.77.0." + std::to_string(1 + host); }
  static std::string ipv6_address(int host) { return "fd77::" + std::to_string(1 + host); }
  static std::string name(int host) { return "host" + std::to_string(host); }
  // The command prefix that runs a program on that host.
  std::vector<std::string> on(int host) const;

  // Three ways to disconnect a host.
  void pull_cable(int host);    // both ends lose the carrier
  void take_down(int host);     // takes down the host's interface
  void drop_packets(int host);  // at the switch; no host detects it
  void pass_packets(int host);  // again

  // Over IPv4, which the host's own kernel drops.
  void drop_outgoing(int host);
  void pass_outgoing(int host);
  void drop_incoming(int host);
  void pass_incoming(int host);

  void take_up(int host);  // the host's interface, after take_down
  // Ends the TCP connections of one host to another over IPv4: the processes there get an error, the peers a reset if
  // packets pass. Returns false if the kernel does not permit it.
  bool reset_connections(int host, int peer);

  // Runs a shell command on a host, such as "ip route add ...".
  void run_on(int host, const std::string& command) const;

 private:
  void run(const Process& where, const std::string& command) const;

  std::unique_ptr<Process> switch_;
  std::vector<std::unique_ptr<Process>> hosts_;
};

}  // namespace backplane::test
