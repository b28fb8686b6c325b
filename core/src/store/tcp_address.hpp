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

// The numeric address by which other hosts reach this one: of the interface of the default route, else the first of the
// host name that is not loopback, else 127.0.0.1.
std::string reachable_address();

// A socket that programs started by this process do not inherit. -1 and errno on failure.
int open_tcp_socket(const Tcp& protocol);

// No delay for small frames; keep-alive, to detect hosts that vanished.
void set_options(Tcp::socket& socket);

// Binds and listens: BP_INVALID for a wildcard or a host that is not this one, BP_RESOURCE if the port is taken.
void listen(Tcp::acceptor& acceptor, const std::string& host, uint16_t port);

// The reason for which a connection failed, as the end of a sentence: "its process ended" or an error of the network.
std::string end_text(const ErrorCode& error);

// The completion condition of asio's reads and writes of whole frames. Calls `moved` on progress. Written bytes count
// only from `count_from` on: the sockets of both ends buffer up to that many for a suspended process.
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
