// SPDX-License-Identifier: Apache-2.0
#include "hosts/network.hpp"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace backplane::test {
namespace {

std::string namespace_path(const Process& process, const char* kind) {
  return "/proc/" + std::to_string(process.pid()) + "/ns/" + kind;
}

// A process that keeps its namespaces alive. Returns once the process is in them.
std::unique_ptr<Process> make_holder(const std::string& name) {
  const std::string enter = "echo " + name + " > /proc/sys/kernel/hostname && exec \"$0\"";
  auto holder =
      std::make_unique<Process>(Variables{}, std::vector<std::string>{"unshare", "--net", "--uts", "sh", "-c", enter});
  if (holder->call("hello") != "unknown command hello") throw std::runtime_error("no namespace for " + name);
  return holder;
}

bool works(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

}  // namespace

std::string Network::obstacle() {
  if (::geteuid() != 0) return "network namespaces need root";
  for (const char* program : {"ip", "bridge", "nsenter", "unshare"}) {
    if (!works(std::string("command -v ") + program)) return std::string("there is no program ") + program;
  }
  if (!works("unshare --net --uts ip link add br0 type bridge"))
    return "the kernel does not permit a bridge in a namespace";
  if (!works("unshare --net ip link add left type veth peer name right"))
    return "the kernel does not permit a veth pair in a namespace";
  return "";
}

Network::Network(int hosts) : switch_(make_holder("switch")) {
  run(*switch_, "ip link add br0 type bridge");
  run(*switch_, "ip link set br0 up");
  for (int host = 0; host < hosts; ++host) {
    hosts_.push_back(make_holder(name(host)));
    const Process& holder = *hosts_.back();
    run(holder, "ip link add docker0 type bridge");  // before eth0: the kernel lists it first
    run(holder, "ip addr add 172.17.0.1/16 dev docker0");
    run(holder, "ip link set docker0 up");
    const std::string port = "port" + std::to_string(host);
    run(*switch_, "ip link add " + port + " type veth peer name eth0 netns " + std::to_string(holder.pid()));
    run(*switch_, "ip link set " + port + " master br0 up");
    run(holder, "ip addr add " + address(host) + "/24 dev eth0");
    run(holder, "ip addr add " + ipv6_address(host) + "/64 dev eth0 nodad");  // usable at once
    run(holder, "ip link set eth0 up");
    run(holder, "ip link set lo up");
  }
}

std::vector<std::string> Network::on(int host) const {
  const Process& holder = *hosts_[static_cast<size_t>(host)];
  return {"nsenter", "--net=" + namespace_path(holder, "net"), "--uts=" + namespace_path(holder, "uts")};
}

void Network::pull_cable(int host) { run(*switch_, "ip link set port" + std::to_string(host) + " down"); }
void Network::take_down(int host) { run(*hosts_[static_cast<size_t>(host)], "ip link set eth0 down"); }
void Network::drop_packets(int host) { run(*switch_, "bridge link set dev port" + std::to_string(host) + " state 0"); }
void Network::pass_packets(int host) { run(*switch_, "bridge link set dev port" + std::to_string(host) + " state 3"); }
void Network::take_up(int host) { run(*hosts_[static_cast<size_t>(host)], "ip link set eth0 up"); }

void Network::drop_outgoing(int host) { run_on(host, "ip route add blackhole 10.77.0.0/25"); }
void Network::pass_outgoing(int host) { run_on(host, "ip route del blackhole 10.77.0.0/25"); }

void Network::drop_incoming(int host) {
  for (int from = 0; from < static_cast<int>(hosts_.size()); ++from) {
    if (from != host) run_on(from, "ip route add blackhole " + address(host));
  }
}

void Network::pass_incoming(int host) {
  for (int from = 0; from < static_cast<int>(hosts_.size()); ++from) {
    if (from != host) run_on(from, "ip route del blackhole " + address(host));
  }
}

bool Network::reset_connections(int host, int peer) {
  const std::string prefix = "nsenter --net=" + namespace_path(*hosts_[static_cast<size_t>(host)], "net");
  const std::string connections = " ss -H -4 -t -n state established dst " + address(peer);
  if (!works("command -v ss")) return false;
  works(prefix + connections + " --kill");
  return works("test -z \"$(" + prefix + connections + ")\"");
}

void Network::run_on(int host, const std::string& command) const { run(*hosts_[static_cast<size_t>(host)], command); }

void Network::run(const Process& where, const std::string& command) const {
  const std::string whole = "nsenter --net=" + namespace_path(where, "net") + " " + command;
  if (std::system(whole.c_str()) != 0) throw std::runtime_error("failed: " + whole);
}

}  // namespace backplane::test
