// SPDX-License-Identifier: Apache-2.0
//
// Names and network addresses of this host.
#pragma once

#include <string>
#include <vector>

namespace backplane::tool {

struct Interface {
  std::string name;
  std::string address;  // numeric
};

// Those that are up, without loopback and link-local addresses.
std::vector<Interface> network_interfaces();

// The numeric addresses of a name or a numeric address. Empty if the name does not resolve.
std::vector<std::string> addresses_of(const std::string& name);

// The address from which this host reaches `host`. Empty if that is loopback, or if there is no route.
std::string address_towards(const std::string& host);

}  // namespace backplane::tool
