// SPDX-License-Identifier: Apache-2.0
//
// Addresses to listen on.
#pragma once

#include <string>

namespace backplane::zmq_plugin {

// Returns `address` if it is a literal IPv4 or IPv6 address and no wildcard; throws Failure(BP_INVALID) otherwise.
std::string checked_address(const std::string& address);

// The address of a network interface: its IPv4 one, else one of IPv6 that is not link-local. Throws Failure(BP_INVALID)
// listing the interfaces there are.
std::string interface_address(const std::string& interface);

// Is this address reachable from its own host alone?
bool is_loopback(const std::string& address);

// Tells hosts apart, and network namespaces of one host: "<boot id>/net:[4026531840]".
std::string host_identity();

// With which the addresses begin that only ranks of this host can dial, and all of them.
std::string local_prefix();

}  // namespace backplane::zmq_plugin
