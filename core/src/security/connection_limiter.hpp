// SPDX-License-Identifier: Apache-2.0
//
// The connections that have not said who they are, so that a flood of them keeps no rank out: their number is limited,
// in all and for each address, and where one is too many the one goes that has been silent for longest. A rank says
// Hello as soon as it is connected.
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
  ConnectionLimiter(size_t most, size_t most_per_address) : most_(most), most_per_address_(most_per_address) {}

  // Takes a new connection in. Who has to be closed for it: the oldest of the same address or, where all together are
  // too many, of the address that has the most of them.
  std::optional<ConnectionId> admit(ConnectionId client, const boost::asio::ip::address& address);
  // It has said who it is, or is closed. One that is not there any more is ignored.
  void leave(ConnectionId client);
  size_t size() const { return places_.size(); }

 private:
  using Address = boost::asio::ip::address;
  using Clients = std::set<ConnectionId>;  // numbers only grow: the first one is the oldest

  const size_t most_;
  const size_t most_per_address_;
  std::map<ConnectionId, Address> places_;
  std::map<Address, Clients> clients_;
};

// How many a process may well have: a quarter of its descriptors, 1024 at most. Its limit is asked once.
size_t max_pending_connections();

}  // namespace backplane::core
