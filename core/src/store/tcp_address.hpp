// SPDX-License-Identifier: Apache-2.0
//
// Addresses and sockets of the TCP store.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace backplane::core {

using Tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// "127.0.0.1:29500", "[::1]:29500"
std::string host_port(const std::string& host, uint16_t port);

// The addresses of a name or literal, in the system's order of preference. A name may block in the resolver.
std::vector<Tcp::endpoint> resolve(const std::string& host, uint16_t port, ErrorCode& error);

// The address, as numbers, by which other hosts reach this one: that of the interface of the default route, else the
// first of the host name that is not loopback, else 127.0.0.1.
std::string reachable_address();

// A socket that programs started by this process do not inherit. -1 and errno if there is none to be had.
int open_tcp_socket(const Tcp& protocol);

// Small frames at once; and connections to hosts that vanished end some day.
void tune(Tcp::socket& socket);

// Binds and listens: BP_INVALID for a wildcard or a host that is not this one, BP_RESOURCE if the port is taken.
void listen(Tcp::acceptor& acceptor, const std::string& host, uint16_t port);

// Why a connection that failed with `error` is over, as the end of a sentence: "its process ended", but for errors that
// the network makes.
std::string end_text(const ErrorCode& error);

// A condition for asio's reads and writes of whole frames: all of it, and `moved` is called when a part of it has gone
// over. What is written counts only beyond what the sockets of both ends take in for a process that is stopped.
template <typename Moved>
auto transfer_frame(size_t count_from, Moved moved) {
  constexpr size_t kAtOnce = 65536;
  return [count_from, moved = std::move(moved)](const ErrorCode& error, size_t bytes) -> size_t {
    if (bytes > count_from) moved();
    return error ? 0 : kAtOnce;
  };
}
inline constexpr size_t kSocketBuffers = size_t{16} << 20;

}  // namespace backplane::core
