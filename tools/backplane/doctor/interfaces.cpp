// SPDX-License-Identifier: Apache-2.0
#include "doctor/interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <array>
#include <memory>

#include "backplane/base/host.hpp"

namespace backplane::tool {
namespace {

std::string numeric_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bits = nullptr;
  if (address->sa_family == AF_INET) bits = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  if (address->sa_family == AF_INET6) bits = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  const bool is_known = bits != nullptr && ::inet_ntop(address->sa_family, bits, text.data(), text.size()) != nullptr;
  return is_known ? text.data() : "";
}

}  // namespace

std::vector<Interface> network_interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = numeric_text(each->ifa_addr);
    const bool is_link_local = address.starts_with("fe80:") || address.starts_with("169.254.");
    if (address.empty() || base::is_loopback(address) || is_link_local) continue;
    found.push_back({each->ifa_name, address});
  }
  return found;
}

std::vector<std::string> addresses_of(const std::string& name) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  std::vector<std::string> found;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return found;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) found.push_back(numeric_text(each->ai_addr));
  return found;
}

std::string address_towards(const std::string& host) {
  for (const std::string& address : addresses_of(host)) {
    if (std::string own = base::route_address(address.c_str()); !own.empty()) return own;
  }
  return "";
}

}  // namespace backplane::tool
