// SPDX-License-Identifier: Apache-2.0
#include "place.hpp"

#include <algorithm>
#include <sstream>

#include "interface.hpp"

namespace backplane::zmq_plugin {

std::string place_key(int32_t rank) { return "zmq/" + std::to_string(rank); }

std::string format_place(const Sockets& sockets) {
  const auto word = [](const std::string& text) { return text.empty() ? " -" : " " + text; };
  return sockets.endpoint() + word(sockets.local_endpoint()) + word(sockets.public_key());
}

Place parse_place(const std::string& line, bool ipc) {
  std::istringstream words(line);
  std::string remote;
  std::string local;
  std::string key;
  words >> remote >> local >> key;
  return {ipc && local.starts_with(local_prefix()) ? local : remote, key};
}

void refuse_loopback(int32_t rank, int32_t other, int32_t culprit) {
  throw sdk::Failure(BP_INVALID, "zmq: rank " + std::to_string(std::min(rank, other)) + " and rank " +
                                     std::to_string(std::max(rank, other)) + " are on different hosts, but rank " +
                                     std::to_string(culprit) +
                                     " listens on a loopback address; give every rank the option iface (as in " +
                                     "zmq?iface=eth0) or address");
}

}  // namespace backplane::zmq_plugin
