// SPDX-License-Identifier: Apache-2.0
//
// Bounds the memory of waiting requests. Each client has a share of its own; beyond it, all clients draw on a common
// reserve. Many waits of one client thus leave room for the few waits that each rank needs. Not synchronised.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>

#include "liveness/membership_table.hpp"

namespace backplane::core {

class WaitBudget {
 public:
  // Both limits are in bytes.
  explicit WaitBudget(size_t share = size_t{64} << 10, size_t reserve = size_t{256} << 20)
      : share_(share), reserve_(reserve) {}

  size_t reserve() const { return reserve_; }
  // False if the client may not wait for more.
  bool take(ClientId client, size_t bytes) {
    size_t& used = used_[client];
    const size_t more = from_reserve(used + bytes) - from_reserve(used);
    if (reserve_used_ + more > reserve_) {
      if (used == 0) used_.erase(client);
      return false;
    }
    reserve_used_ += more;
    used += bytes;
    return true;
  }
  void give_back(ClientId client, size_t bytes) {
    const auto used = used_.find(client);
    reserve_used_ -= from_reserve(used->second) - from_reserve(used->second - bytes);
    used->second -= bytes;
    if (used->second == 0) used_.erase(used);
  }

 private:
  // The part of `used` bytes that a client draws from the reserve.
  size_t from_reserve(size_t used) const { return used - std::min(used, share_); }

  const size_t share_;
  const size_t reserve_;
  std::map<ClientId, size_t> used_;
  size_t reserve_used_ = 0;
};

}  // namespace backplane::core
