// SPDX-License-Identifier: Apache-2.0
#include "security/connection_limiter.hpp"

#include <algorithm>

namespace backplane::core {
namespace {

using boost::asio::ip::address;
using boost::asio::ip::address_v6;

// The /64 network of an IPv6 address, because one host may have 2^64 addresses.
address counted_address(const address& from) {
  if (!from.is_v6() || from.to_v6().is_v4_mapped() || from.is_loopback()) return from;
  address_v6::bytes_type bytes = from.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), static_cast<unsigned char>(0));
  return address_v6(bytes);
}

}  // namespace

std::optional<ConnectionId> ConnectionLimiter::admit(ConnectionId connection, const Address& address) {
  const Address counted = counted_address(address);
  std::optional<ConnectionId> victim;
  const auto same = by_address_.find(counted);
  if (same != by_address_.end() && same->second.size() >= max_per_address_) {
    victim = *same->second.begin();
  } else if (addresses_.size() >= max_pending_) {
    const auto largest = std::max_element(by_address_.begin(), by_address_.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    victim = *largest->second.begin();
  }
  if (victim) release(*victim);
  addresses_.emplace(connection, counted);
  by_address_[counted].insert(connection);
  return victim;
}

void ConnectionLimiter::release(ConnectionId connection) {
  const auto found = addresses_.find(connection);
  if (found == addresses_.end()) return;
  const auto group = by_address_.find(found->second);
  group->second.erase(connection);
  if (group->second.empty()) by_address_.erase(group);
  addresses_.erase(found);
}

}  // namespace backplane::core
