// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_address.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/udp.hpp>
#include <cerrno>
#include <chrono>
#include <thread>

#include "backplane/base/host.hpp"
#include "error.hpp"
#include "interrupt.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

// "[::1]" as "::1"
std::string without_brackets(const std::string& host) {
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

// Also as an IPv6 address: "::ffff:0.0.0.0".
bool is_wildcard(const asio::ip::address& address) {
  if (address.is_unspecified()) return true;
  return address.is_v6() && address.to_v6().is_v4_mapped() &&
         asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_unspecified();
}

}  // namespace

std::string host_port(const std::string& host, uint16_t port) {
  const std::string bare = without_brackets(host);
  return bare.find(':') == std::string::npos ? fmt::format("{}:{}", bare, port) : fmt::format("[{}]:{}", bare, port);
}

bool is_literal(const std::string& host) {
  ErrorCode error;
  asio::ip::make_address(without_brackets(host), error);
  return !error;
}

std::vector<Tcp::endpoint> resolve(const std::string& host, uint16_t port, ErrorCode& error) {
  ErrorCode not_literal;
  const auto address = asio::ip::make_address(without_brackets(host), not_literal);
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

std::string host_name_address() {
  ErrorCode error;
  for (const auto& endpoint : resolve(base::host_name(), 0, error)) {
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
  if (std::string address = base::default_route_address(); !address.empty()) return address;
  if (std::string address = host_name_address(); !address.empty()) return address;
  return "127.0.0.1";
}

void set_options(Tcp::socket& socket) {
  ErrorCode ignored;
  socket.set_option(Tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
}

std::string end_text(const ErrorCode& error, const std::string& connection, const std::string& peer) {
  // broken_pipe: the peer closed the connection before it refused what was sent.
  const bool is_closed = error == asio::error::eof || error == asio::error::broken_pipe;
  const bool is_reset = error == asio::error::connection_reset;
  if (!is_closed && !is_reset) return fmt::format("{} broke ({})", connection, error.message());
  const ProcessState state = process_state(peer);
  // The kernel of a process that ends closes its connections, or resets those with unread data.
  if (state == ProcessState::kEnded || (is_closed && state == ProcessState::kUnknown)) return "its process ended";
  return fmt::format("{} was {}", connection, is_closed ? "closed without a goodbye" : "reset");
}

namespace {

// Listens on one address.
ErrorCode try_listen(Tcp::acceptor& acceptor, const Tcp::endpoint& endpoint) {
  ErrorCode error = open_socket(acceptor, endpoint.protocol());
  if (error) return error;
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

// As `resolve`, with retries while the name is not known.
std::vector<Tcp::endpoint> resolve_repeatedly(const std::string& host, uint16_t port, const Deadline& until,
                                              ErrorCode& error) {
  constexpr auto kPause = std::chrono::milliseconds(100);
  auto endpoints = resolve(host, port, error);
  for (bool is_first = true; !until.passed(); is_first = false) {
    if (error != asio::error::host_not_found && error != asio::error::host_not_found_try_again) break;
    if (is_first) {
      log(BP_LOG_WARN, "the name {}, where the store is to listen, cannot be resolved ({}); trying again", host,
          error.message());
    }
    Interruptible::check();
    std::this_thread::sleep_for(kPause);
    endpoints = resolve(host, port, error);
  }
  return endpoints;
}

[[noreturn]] void fail_listening(const std::string& host, uint16_t port, const ErrorCode& error) {
  const std::string where = host_port(host, port);
  std::string text = fmt::format("cannot listen on {}: {}", where, error.message());
  int32_t status = BP_RESOURCE;
  if (error == asio::error::address_in_use) {
    text = fmt::format(
        "cannot listen on {}: the port is in use, perhaps by another job's store; choose another port "
        "(MASTER_PORT, under torchrun BACKPLANE_MASTER_PORT, or the init method)",
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

void listen(Tcp::acceptor& acceptor, const std::string& host, uint16_t port, const Deadline& resolve_until) {
  ErrorCode error;
  const auto endpoints = resolve_repeatedly(host, port, resolve_until, error);
  if (endpoints.empty()) fail_listening(host, port, error ? error : asio::error::host_not_found);
  for (const auto& endpoint : endpoints) {
    if (is_wildcard(endpoint.address())) {
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
