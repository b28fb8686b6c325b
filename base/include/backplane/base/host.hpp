// SPDX-License-Identifier: Apache-2.0
//
// Names and addresses of this host: for messages, to detect whether two processes run on the same host, and to listen.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "descriptor.hpp"

namespace backplane::base {

inline std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

// Identifies this host until it reboots. Empty if unknown.
inline std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// "<boot id>/net:[4026531840]". Processes with equal identities reach each other over loopback and abstract sockets.
// Empty if unknown, as in a process without a free descriptor.
inline std::string host_identity() {
  std::array<char, 64> network{};
  const bool known = ::readlink("/proc/self/ns/net", network.data(), network.size() - 1) > 0;
  const std::string boot = boot_id();
  return boot.empty() ? "" : boot + "/" + (known ? network.data() : "");
}

// Whether only this host can reach a numeric address.
inline bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

// The numeric source address of packets to a remote host. Nothing is sent: the kernel looks for a route. Empty if there
// is no route, or if it ends on this host.
inline std::string route_address(const char* remote) {
  sockaddr_storage address = {};
  auto* const ipv4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* const ipv6 = reinterpret_cast<sockaddr_in6*>(&address);
  const bool is_ipv4 = ::inet_pton(AF_INET, remote, &ipv4->sin_addr) == 1;
  if (!is_ipv4 && ::inet_pton(AF_INET6, remote, &ipv6->sin6_addr) != 1) return "";
  address.ss_family = is_ipv4 ? AF_INET : AF_INET6;
  ipv4->sin_port = htons(9);  // any port; at the same place in both structures
  socklen_t size = is_ipv4 ? sizeof *ipv4 : sizeof *ipv6;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const Descriptor socket(::socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), generic, size) != 0) return "";
  if (::getsockname(socket.get(), generic, &size) != 0) return "";
  const bool is_local = is_ipv4 ? (ntohl(ipv4->sin_addr.s_addr) >> 24) == 127 || ipv4->sin_addr.s_addr == INADDR_ANY
                                : IN6_IS_ADDR_LOOPBACK(&ipv6->sin6_addr) || IN6_IS_ADDR_UNSPECIFIED(&ipv6->sin6_addr);
  if (is_local) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bits = is_ipv4 ? static_cast<const void*>(&ipv4->sin_addr) : &ipv6->sin6_addr;
  return ::inet_ntop(address.ss_family, bits, text.data(), text.size()) == nullptr ? "" : text.data();
}

// The address of the interface of the default route. Empty if there is none.
inline std::string default_route_address() {
  // Reserved for documentation (RFC 5737 and 3849), so that only the default route leads there.
  for (const char* remote : {"192.0.2.1", "2001:db8::1"}) {
    if (std::string address = route_address(remote); !address.empty()) return address;
  }
  return "";
}

}  // namespace backplane::base
