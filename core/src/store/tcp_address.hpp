// SPDX-License-Identifier: Apache-2.0
//
// Addresses and sockets of the TCP store.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace backplane::core {

using Tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// "127.0.0.1:29500", "[::1]:29500"
std::string host_port(const std::string& host, uint16_t port);

// The addresses of a name or literal, in the system's order of preference. A name may block in the resolver.
std::vector<Tcp::endpoint> resolve(const std::string& host, uint16_t port, ErrorCode& error);

// A socket that programs started by this process do not inherit. -1 and errno if there is none to be had.
int open_tcp_socket(const Tcp& protocol);

// Small frames at once; and connections to hosts that vanished end some day.
void tune(Tcp::socket& socket);

// Binds and listens: BP_INVALID for a wildcard or a host that is not this one, BP_RESOURCE if the port is taken.
void listen(Tcp::acceptor& acceptor, const std::string& host, uint16_t port);

}  // namespace backplane::core
