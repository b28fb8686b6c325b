// SPDX-License-Identifier: Apache-2.0
//
// Addresses and sockets of the TCP store.
#pragma once

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "deadline.hpp"

namespace backplane::core {

using Tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// Hosts of these functions may have brackets: "[::1]".

// "127.0.0.1:29500", "[::1]:29500"
std::string host_port(const std::string& host, uint16_t port);

// Whether the host is a numeric address, not a name.
bool is_literal(const std::string& host);

// The addresses of a name or literal, in the system's order of preference. A name may block in the resolver.
std::vector<Tcp::endpoint> resolve(const std::string& host, uint16_t port, ErrorCode& error);

// The numeric address by which other hosts reach this one: of the interface of the default route, else the first of the
// host name that is not loopback, else 127.0.0.1.
std::string reachable_address();

// Gives an acceptor or a socket of asio a new socket, which programs started by this process do not inherit.
template <typename Socket>
ErrorCode open_socket(Socket& socket, const Tcp& protocol) {
  base::Descriptor fd(::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return {errno, boost::system::system_category()};
  ErrorCode error;
  socket.assign(protocol, fd.get(), error);
  if (!error) fd.release();
  return error;
}

// No delay for small frames; keep-alive, to detect hosts that vanished.
void set_options(Tcp::socket& socket);

// Binds and listens: BP_INVALID for a wildcard or a host that is not this one, BP_RESOURCE if the port is taken. A name
// that is not known is looked up again until `resolve_until`: the DNS of a cluster learns the names of its pods after
// they have started.
void listen(Tcp::acceptor& acceptor, const std::string& host, uint16_t port, const Deadline& resolve_until);

// What was seen when a connection ended, as the end of a sentence: "its process ended", "its connection to the store
// was reset". `connection`: its name. `peer`: the identity of the process at its other end, empty if unknown.
std::string end_text(const ErrorCode& error, const std::string& connection, const std::string& peer);

}  // namespace backplane::core
