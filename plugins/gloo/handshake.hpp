// SPDX-License-Identifier: Apache-2.0
//
// What a rank publishes about itself, and the first bytes of a connection. The rank that connects sends the token of
// the rank that listens and its own number. The rank that listens answers with its second token if it takes this
// connection. Both tokens are random and are in the store, so other processes know neither.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>

#include "backplane/sdk/sdk.hpp"

namespace backplane::gloo {

using Token = std::array<char, 16>;

// Throws sdk::Failure(BP_RESOURCE) if the system has no random bytes.
Token make_token();

// Published as these bytes: all ranks of a group have the same byte order.
struct Endpoint {
  Token token = {};   // that a rank which connects must send
  Token answer = {};  // that the rank which listens answers
  int32_t world_size = 0;
  std::array<char, sizeof(sockaddr_in6)> address = {};  // an IPv4 or IPv6 socket address
};
static_assert(sizeof(Endpoint) == 64);

// Throws sdk::Failure(BP_UNSUPPORTED) if it is neither IPv4 nor IPv6.
void set_address(Endpoint& endpoint, const sockaddr_storage& address);
// The address of an endpoint, and its size in *size.
sockaddr_storage address_of(const Endpoint& endpoint, socklen_t* size);

struct Hello {
  Token token = {};   // of the rank that listens
  int32_t rank = -1;  // of the rank that connects
};
static_assert(sizeof(Hello) == sizeof(Token) + sizeof(int32_t));

}  // namespace backplane::gloo
