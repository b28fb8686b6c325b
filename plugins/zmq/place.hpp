// SPDX-License-Identifier: Apache-2.0
//
// What the store says of where a rank listens.
#pragma once

#include <cstdint>
#include <string>

#include "sockets.hpp"

namespace backplane::zmq_plugin {

// Key in the store under which a rank publishes its line.
std::string place_key(int32_t rank);

// "<TCP endpoint> <IPC endpoint or -> <public key or ->": what others have to know to dial this rank.
std::string format_place(const Sockets& sockets);

struct Place {
  std::string endpoint;    // which of the two to dial from here
  std::string public_key;  // of whoever listens there; "-" if it has none
};
// `ipc`: local sockets are dialled where that is possible.
Place parse_place(const std::string& line, bool ipc);

// Throws Failure(BP_INVALID): the two ranks are on different hosts, and `culprit` listens on a loopback address.
[[noreturn]] void refuse_loopback(int32_t rank, int32_t other, int32_t culprit);

}  // namespace backplane::zmq_plugin
