// SPDX-License-Identifier: Apache-2.0
//
// Captures packets on loopback of the caller's network namespace, and keeps the beginning of each TCP connection.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backplane/base/descriptor.hpp"

namespace backplane::conformance {

// The first bytes that a client sent, at most 2 KiB, and the end of each of its packets.
struct Opening {
  std::string bytes;
  std::vector<size_t> ends;  // rising; the last one is bytes.size()
};

class Sniffer {
 public:
  // Null, with the reason in `why_not`, if the machine does not permit it. Requires CAP_NET_RAW in the namespace.
  static std::unique_ptr<Sniffer> make(std::string& why_not);
  Sniffer(const Sniffer&) = delete;
  Sniffer& operator=(const Sniffer&) = delete;

  // Reads the captured packets. Waits up to `milliseconds` for the first.
  void listen(int milliseconds);
  // The openings of all connections to this port.
  std::vector<Opening> openings(uint16_t port) const;

 private:
  struct Stream {
    uint32_t first = 0;  // sequence number of the first byte
    bool known = false;  // the SYN was seen
    std::string bytes;
    std::vector<bool> here;  // which of them were captured
    std::set<size_t> ends;
  };
  explicit Sniffer(base::Descriptor socket) : socket_(std::move(socket)) {}
  void take(const unsigned char* packet, size_t size);

  const base::Descriptor socket_;
  std::map<std::pair<uint16_t, uint16_t>, Stream> streams_;  // by source and destination port
};

}  // namespace backplane::conformance
