// SPDX-License-Identifier: Apache-2.0
//
// Limits the connections that have not yet sent their Hello, in total and per address, so that a flood of them cannot
// lock ranks out. Beyond a limit, the oldest is closed. A rank sends its Hello as soon as it is connected.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace backplane::core {

using ConnectionId = uint64_t;

class ConnectionLimiter {
 public:
  ConnectionLimiter(size_t max_pending, size_t max_per_address)
      : max_pending_(max_pending), max_per_address_(max_per_address) {}

  // Adds a connection. Returns the one to close for it, if any: the oldest of the same address or, if the total is
  // exceeded, the oldest of the address with the most connections.
  std::optional<ConnectionId> admit(ConnectionId connection, const boost::asio::ip::address& address);
  // The connection sent its Hello or is closed. Ignores unknown ones.
  void release(ConnectionId connection);
  size_t size() const { return addresses_.size(); }

 private:
  using Address = boost::asio::ip::address;
  using Connections = std::set<ConnectionId>;  // ids increase: the first one is the oldest

  const size_t max_pending_;
  const size_t max_per_address_;
  std::map<ConnectionId, Address> addresses_;
  std::map<Address, Connections> by_address_;
};

}  // namespace backplane::core
