// SPDX-License-Identifier: Apache-2.0
//
// The addresses that ranks listen on, and how they are published in the store.
#pragma once

#include <cstdint>
#include <string>

#include "transport.hpp"

namespace backplane::zmq {

// Returns `address` if it is a literal IPv4 or IPv6 address and no wildcard. Throws Failure(BP_INVALID) otherwise.
std::string checked_address(const std::string& address);

// The address of a network interface: its IPv4 one, else an IPv6 one that is not link-local. Throws
// Failure(BP_INVALID), which lists the interfaces.
std::string interface_address(const std::string& interface);

// Can this address be reached from its own host only?
bool is_loopback(const std::string& address);

// Identifies a host and a network namespace on it: "<boot id>/net:[4026531840]".
std::string host_identity();

// The prefix of addresses that only ranks of this host can dial.
std::string local_prefix();

// The store's key for a rank's address.
std::string address_key(int32_t rank);

// "<TCP endpoint> <IPC endpoint or -> <public key or ->": the value that others need to dial this rank.
std::string format_address(const Sockets& sockets);

struct Address {
  std::string endpoint;    // the one to dial from here
  std::string public_key;  // of the rank that listens there; "-" if it has none
};
// `ipc`: choose the local socket where possible.
Address parse_address(const std::string& line, bool ipc);

// Throws Failure(BP_INVALID): the two ranks are on different hosts, and `culprit` listens on a loopback address.
[[noreturn]] void refuse_loopback(int32_t rank, int32_t other, int32_t culprit);

}  // namespace backplane::zmq
