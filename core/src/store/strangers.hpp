// SPDX-License-Identifier: Apache-2.0
//
// The connections that have not said who they are, so that a flood of them keeps no rank out: their number is limited,
// in all and for each address, and where one is too many the one goes that has been silent for longest. A rank says
// Hello as soon as it is connected.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <set>

#include "store/board.hpp"

namespace backplane::core {

class Strangers {
 public:
  Strangers(size_t most, size_t most_per_address) : most_(most), most_per_address_(most_per_address) {}

  // Takes a new connection in. Who has to be closed for it: the oldest of the same address or, where all together are
  // too many, of the address that has the most of them.
  std::optional<ClientId> admit(ClientId client, const boost::asio::ip::address& address);
  // It has said who it is, or is closed. One that is not there any more is ignored.
  void leave(ClientId client);
  size_t size() const { return places_.size(); }

 private:
  using Address = boost::asio::ip::address;
  using Clients = std::set<ClientId>;  // numbers only grow: the first one is the oldest

  const size_t most_;
  const size_t most_per_address_;
  std::map<ClientId, Address> places_;
  std::map<Address, Clients> clients_;
};

// How many a process may well have: a quarter of its descriptors, 1024 at most. Its limit is asked once.
size_t most_strangers();

}  // namespace backplane::core
