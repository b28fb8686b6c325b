// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_address.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/udp.hpp>
#include <cerrno>
#include <chrono>
#include <thread>

#include "error.hpp"

namespace backplane::core {

namespace asio = boost::asio;

std::string host_port(const std::string& host, uint16_t port) {
  const bool bare = host.find(':') == std::string::npos;
  return bare ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

std::vector<Tcp::endpoint> resolve(const std::string& host, uint16_t port, ErrorCode& error) {
  ErrorCode not_literal;
  const auto address = asio::ip::make_address(host, not_literal);
  if (!not_literal) return {Tcp::endpoint(address, port)};
  asio::io_context io;
  Tcp::resolver resolver(io);
  std::vector<Tcp::endpoint> endpoints;
  for (const auto& entry : resolver.resolve(host, std::to_string(port), Tcp::resolver::numeric_service, error)) {
    endpoints.push_back(entry.endpoint());
  }
  return endpoints;
}

namespace {

// The source address of packets to a remote host: the kernel looks for a route, and nothing is sent.
std::string route_address(const char* remote) {
  constexpr uint16_t kAnyPort = 9;
  asio::io_context io;
  asio::ip::udp::socket socket(io);
  ErrorCode error;
  socket.connect({asio::ip::make_address(remote), kAnyPort}, error);
  const auto address = error ? asio::ip::address() : socket.local_endpoint(error).address();
  const bool usable = !error && !address.is_loopback() && !address.is_unspecified();
  return usable ? address.to_string() : "";
}

std::string host_name_address() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  ErrorCode error;
  for (const auto& endpoint : resolve(name.data(), 0, error)) {
    asio::io_context io;
    asio::ip::udp::socket socket(io);
    const asio::ip::udp::endpoint own(endpoint.address(), 0);
    socket.open(own.protocol(), error);
    if (!error) socket.bind(own, error);  // succeeds for an address of this host
    if (!error && !endpoint.address().is_loopback()) return endpoint.address().to_string();
  }
  return "";
}

}  // namespace

std::string reachable_address() {
  // Reserved for documentation (RFC 5737 and 3849), so that only the default route leads there.
  for (const char* remote : {"192.0.2.1", "2001:db8::1"}) {
    if (std::string address = route_address(remote); !address.empty()) return address;
  }
  if (std::string address = host_name_address(); !address.empty()) return address;
  return "127.0.0.1";
}

int open_tcp_socket(const Tcp& protocol) { return ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, 0); }

void set_options(Tcp::socket& socket) {
  ErrorCode ignored;
  socket.set_option(Tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
}

std::string end_text(const ErrorCode& error) {
  const bool ended = error == asio::error::eof || error == asio::error::connection_reset ||
                     error == asio::error::broken_pipe || error == asio::error::operation_aborted;
  return ended ? "its process ended" : fmt::format("its connection broke ({})", error.message());
}

namespace {

// Listens on one address.
ErrorCode try_listen(Tcp::acceptor& acceptor, const Tcp::endpoint& endpoint) {
  const int fd = open_tcp_socket(endpoint.protocol());
  if (fd < 0) return {errno, boost::system::system_category()};
  ErrorCode error;
  acceptor.assign(endpoint.protocol(), fd, error);
  if (error) {
    ::close(fd);
    return error;
  }
  // Allows ports with connections in TIME_WAIT of an ended job, but not ports with a listener.
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor.native_non_blocking(true, error);
  if (error) {
    ErrorCode ignored;
    acceptor.close(ignored);
  }
  return error;
}

// With retries: the system may assign the port for a moment to a client of this machine that connects to it.
ErrorCode listen_with_retries(Tcp::acceptor& acceptor, const Tcp::endpoint& endpoint) {
  constexpr int kAttempts = 5;
  constexpr auto kPause = std::chrono::milliseconds(20);
  ErrorCode error = try_listen(acceptor, endpoint);
  for (int i = 1; i < kAttempts && error == asio::error::address_in_use; ++i) {
    std::this_thread::sleep_for(kPause);
    error = try_listen(acceptor, endpoint);
  }
  return error;
}

[[noreturn]] void fail_listening(const std::string& host, uint16_t port, const ErrorCode& error) {
  const std::string where = host_port(host, port);
  std::string text = fmt::format("cannot listen on {}: {}", where, error.message());
  int32_t status = BP_RESOURCE;
  if (error == asio::error::address_in_use) {
    text = fmt::format(
        "cannot listen on {}: the port is in use, perhaps by another job's store; choose another port "
        "(MASTER_PORT or the init method)",
        where);
  } else if (error == asio::error::access_denied) {
    text += "; choose a port of 1024 or more";
  } else if (error.value() == EADDRNOTAVAIL || error.category() == asio::error::get_netdb_category()) {
    status = BP_INVALID;
    text += "; use an address of the machine on which rank 0 runs (MASTER_ADDR or the init method)";
  }
  throw Error(status, text, -1, error.value());
}

}  // namespace

void listen(Tcp::acceptor& acceptor, const std::string& host, uint16_t port) {
  ErrorCode error;
  const auto endpoints = resolve(host, port, error);
  if (endpoints.empty()) fail_listening(host, port, error ? error : asio::error::host_not_found);
  for (const auto& endpoint : endpoints) {
    if (endpoint.address().is_unspecified()) {
      fail(BP_INVALID,
           "cannot serve the store on {}, which is every interface of this machine; use the address of one "
           "interface that the other ranks can reach",
           host);
    }
    error = listen_with_retries(acceptor, endpoint);
    // A host name may have an IPv6 address on a machine without IPv6. Any other failure is final: clients would connect
    // to this address first.
    const bool next = error.value() == EADDRNOTAVAIL || error.value() == EAFNOSUPPORT;
    if (!next) break;
  }
  if (error) fail_listening(host, port, error);
}

}  // namespace backplane::core
