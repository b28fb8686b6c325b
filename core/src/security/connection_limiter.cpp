// SPDX-License-Identifier: Apache-2.0
#include "security/connection_limiter.hpp"

#include <sys/resource.h>

#include <algorithm>

namespace backplane::core {
namespace {

using boost::asio::ip::address;
using boost::asio::ip::address_v6;

// One host may have 2^64 addresses of IPv6: its network counts.
address place_of(const address& from) {
  if (!from.is_v6() || from.to_v6().is_v4_mapped() || from.is_loopback()) return from;
  address_v6::bytes_type bytes = from.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), static_cast<unsigned char>(0));
  return address_v6(bytes);
}

}  // namespace

std::optional<ConnectionId> ConnectionLimiter::admit(ConnectionId client, const Address& address) {
  const Address place = place_of(address);
  std::optional<ConnectionId> victim;
  const auto same = clients_.find(place);
  if (same != clients_.end() && same->second.size() >= most_per_address_) {
    victim = *same->second.begin();
  } else if (places_.size() >= most_) {
    const auto largest = std::max_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    victim = *largest->second.begin();
  }
  if (victim) leave(*victim);
  places_.emplace(client, place);
  clients_[place].insert(client);
  return victim;
}

void ConnectionLimiter::leave(ConnectionId client) {
  const auto found = places_.find(client);
  if (found == places_.end()) return;
  const auto group = clients_.find(found->second);
  group->second.erase(client);
  if (group->second.empty()) clients_.erase(group);
  places_.erase(found);
}

size_t max_pending_connections() {
  constexpr size_t kMost = 1024;
  constexpr size_t kLeast = 16;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMost;
  return std::clamp<size_t>(static_cast<size_t>(limit.rlim_cur) / 4, kLeast, kMost);
}

}  // namespace backplane::core
