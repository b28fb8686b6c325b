// SPDX-License-Identifier: Apache-2.0
#include "address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <sstream>

#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/listening.hpp"

namespace backplane::zmq {
namespace {

// The text of an address; empty if it cannot be listened on.
std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&ipv6)) inet_ntop(AF_INET6, &ipv6, text, sizeof text);
  }
  return text;
}

// A value in quotation marks, truncated between characters if it is long.
std::string quoted(const std::string& value) {
  constexpr size_t kMax = 64;  // bytes
  if (value.size() <= kMax) return "'" + value + "'";
  size_t end = kMax;
  while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xc0U) == 0x80U) --end;
  return "'" + value.substr(0, end) + "...'";
}

}  // namespace

std::string checked_address(const std::string& address) {
  in_addr ipv4 = {};
  in6_addr ipv6 = {};
  const bool is_ipv4 = inet_pton(AF_INET, address.c_str(), &ipv4) == 1;
  const bool is_ipv6 = inet_pton(AF_INET6, address.c_str(), &ipv6) == 1;
  if (!is_ipv4 && !is_ipv6) {
    throw sdk::Failure(BP_INVALID, "zmq: option address: " + quoted(address) +
                                       " is not an IPv4 or IPv6 address; give one, or use iface=");
  }
  if (is_ipv4 ? ipv4.s_addr == INADDR_ANY : IN6_IS_ADDR_UNSPECIFIED(&ipv6)) {
    throw sdk::Failure(BP_INVALID, "zmq: option address: " + quoted(address) +
                                       " would listen on every interface; give the address of one, or use iface=");
  }
  return address;
}

std::string interface_address(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throw sdk::Failure(BP_RESOURCE, std::string("zmq: cannot list the network interfaces: ") + std::strerror(errno), -1,
                       errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::string found;
  std::set<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const std::string text = text_of(entry->ifa_addr);
    if (text.empty()) continue;
    names.insert(entry->ifa_name);
    if (interface != entry->ifa_name) continue;
    if (found.empty() || entry->ifa_addr->sa_family == AF_INET) found = text;
    if (entry->ifa_addr->sa_family == AF_INET) break;
  }
  if (!found.empty()) return found;
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  throw sdk::Failure(BP_INVALID, "zmq: option iface: there is no network interface " + quoted(interface) +
                                     " with an address; there are: " + known);
}

std::string local_prefix() { return "ipc://@backplane/" + host_identity() + "/"; }

std::string address_key(int32_t rank) { return "zmq/" + std::to_string(rank); }

std::string format_address(const Sockets& sockets) {
  const auto word = [](const std::string& text) { return text.empty() ? " -" : " " + text; };
  return sockets.endpoint() + word(sockets.local_endpoint()) + word(sockets.public_key());
}

Address parse_address(const std::string& line, bool ipc) {
  std::istringstream words(line);
  std::string remote;
  std::string local;
  std::string key;
  words >> remote >> local >> key;
  return {ipc && local.starts_with(local_prefix()) ? local : remote, key};
}

void refuse_loopback(int32_t rank, const std::string& mine, int32_t other, const std::string& host,
                     const std::string& address) {
  sdk::refuse_loopback_between_hosts({"rank " + std::to_string(rank), host_identity(), mine},
                                     {"rank " + std::to_string(other), host, address}, other);
}

}  // namespace backplane::zmq
