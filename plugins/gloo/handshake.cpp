// SPDX-License-Identifier: Apache-2.0
#include "handshake.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace backplane::gloo {

Token make_token() {
  Token token;
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    throw sdk::Failure(BP_RESOURCE, "gloo: cannot get random bytes (getrandom)", -1, errno);
  }
  return token;
}

void set_address(Endpoint& endpoint, const sockaddr_storage& address) {
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) {
    throw sdk::Failure(BP_UNSUPPORTED, "gloo: the address to listen on is neither IPv4 nor IPv6");
  }
  std::memcpy(endpoint.address.data(), &address, endpoint.address.size());
}

sockaddr_storage address_of(const Endpoint& endpoint, socklen_t* size) {
  sockaddr_storage address = {};
  std::memcpy(&address, endpoint.address.data(), endpoint.address.size());
  *size = address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return address;
}

}  // namespace backplane::gloo
