// SPDX-License-Identifier: Apache-2.0
//
// The addresses that ranks listen on, and how they are published in the store.
#pragma once

#include <cstdint>
#include <string>

#include "backplane/base/host.hpp"
#include "transport.hpp"

namespace backplane::zmq {

// Returns `address` if it is a literal IPv4 or IPv6 address and no wildcard. Throws Failure(BP_INVALID) otherwise.
std::string checked_address(const std::string& address);

// The address of a network interface: its IPv4 one, else an IPv6 one that is not link-local. Throws
// Failure(BP_INVALID), which lists the interfaces.
std::string interface_address(const std::string& interface);

using base::host_identity;

// The prefix of addresses that only ranks of this host can dial.
std::string local_prefix();

// The store's key for a rank's address.
std::string address_key(int32_t rank);

// "<TCP endpoint> <IPC endpoint or -> <public key or ->": what the other ranks need to dial this one.
std::string format_address(const Sockets& sockets);

struct Address {
  std::string endpoint;    // to dial from this rank
  std::string public_key;  // of the rank that listens there; "-" if it has none
};
// `ipc`: choose the local socket where possible.
Address parse_address(const std::string& line, bool ipc);

// Throws Failure(BP_INVALID) if the ranks are on different hosts and one listens on a loopback address. `mine`: this
// rank's address; `host`, `address`: those of the other one.
void refuse_loopback(int32_t rank, const std::string& mine, int32_t other, const std::string& host,
                     const std::string& address);

}  // namespace backplane::zmq
