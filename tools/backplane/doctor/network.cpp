// SPDX-License-Identifier: Apache-2.0
//
// A connection begins with the token. Each request is a size (8 bytes, big-endian) and as many bytes. Each reply is the
// clock of the other host (nanoseconds since 1970, 8 bytes, big-endian).
#include "doctor/network.hpp"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "backplane/base/signals.hpp"
#include "common/failure.hpp"

namespace backplane::tool {
namespace {

constexpr std::chrono::seconds kPeerSilence{2};  // after which a connection has failed
constexpr double kStreamSeconds = 0.2;           // a stream that takes longer measures the bandwidth
constexpr uint64_t kSmallestStream = 1 << 16;    // bytes; doubled until it takes that long
constexpr uint64_t kLargestStream = 1 << 26;
constexpr size_t kChunk = 256 * 1024;  // bytes per call
constexpr int kRoundTrips = 50;

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress socket_address(const std::string& text, uint16_t port) {
  SocketAddress address;
  auto* const ipv4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* const ipv6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, text.c_str(), &ipv4->sin_addr) == 1) {
    address.storage.ss_family = AF_INET;
    address.size = sizeof *ipv4;
  } else {
    ::inet_pton(AF_INET6, text.c_str(), &ipv6->sin6_addr);
    address.storage.ss_family = AF_INET6;
    address.size = sizeof *ipv6;
  }
  ipv4->sin_port = htons(port);  // at the same place in both structures
  return address;
}

int64_t wall_clock() { return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Fails if its peer is silent for kPeerSilence.
class Connection {
 public:
  explicit Connection(base::Descriptor socket) : socket_(std::move(socket)) {
    const timeval silence = {kPeerSilence.count(), 0};
    const int on = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence);
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  // Both return false if the connection fails, and set errno.
  bool send(const void* data, size_t size) const {
    const auto* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t sent = ::send(socket_.get(), at, size, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return failed();
      at += sent;
      size -= static_cast<size_t>(sent);
    }
    return true;
  }
  bool receive(void* data, size_t size) const {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t got = ::recv(socket_.get(), at, size, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) errno = ECONNRESET;
      if (got <= 0) return failed();
      at += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }

 private:
  static bool failed() {
    if (errno == EAGAIN) errno = ETIMEDOUT;  // of SO_RCVTIMEO and SO_SNDTIMEO
    return false;
  }

  base::Descriptor socket_;
};

void reply(const Connection& connection, const std::string& token) {
  std::string claimed(token.size(), '\0');
  if (!connection.receive(claimed.data(), claimed.size()) || claimed != token) return;
  std::vector<char> sink(kChunk);
  uint64_t size = 0;
  while (connection.receive(&size, sizeof size)) {
    for (uint64_t left = be64toh(size); left > 0;) {
      const size_t part = std::min<uint64_t>(left, sink.size());
      if (!connection.receive(sink.data(), part)) return;
      left -= part;
    }
    const uint64_t now = htobe64(static_cast<uint64_t>(wall_clock()));
    if (!connection.send(&now, sizeof now)) return;
  }
}

// Throws std::system_error.
[[noreturn]] void fail_connection(int error = errno) { throw std::system_error(error, std::generic_category()); }

base::Descriptor connect_to(const Endpoint& endpoint) {
  SocketAddress address = socket_address(endpoint.interface.address, endpoint.port);
  base::Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) fail_connection();
  if (::connect(socket.get(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS) fail_connection();
    pollfd connected = {socket.get(), POLLOUT, 0};
    constexpr int kLimit = std::chrono::milliseconds(kPeerSilence).count();
    if (::poll(&connected, 1, kLimit) == 0) fail_connection(ETIMEDOUT);
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) fail_connection(error);
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  ::fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK);
  return socket;
}

struct Reply {
  double seconds;        // from the request to the reply
  int64_t clock_offset;  // nanoseconds
};

Reply request(const Connection& connection, const std::vector<char>& bytes, uint64_t size) {
  const int64_t sent_at = wall_clock();
  const auto start = std::chrono::steady_clock::now();
  const uint64_t header = htobe64(size);
  if (!connection.send(&header, sizeof header)) fail_connection();
  for (uint64_t left = size; left > 0;) {
    const size_t part = std::min<uint64_t>(left, bytes.size());
    if (!connection.send(bytes.data(), part)) fail_connection();
    left -= part;
  }
  uint64_t clock = 0;
  if (!connection.receive(&clock, sizeof clock)) fail_connection();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {seconds.count(), static_cast<int64_t>(be64toh(clock)) - (sent_at + wall_clock()) / 2};
}

}  // namespace

std::string endpoint_text(const Endpoint& endpoint) {
  const std::string& address = endpoint.interface.address;
  if (address.empty()) return "any address";
  const bool is_ipv6 = address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{} on {}", is_ipv6 ? "[" : "", address, is_ipv6 ? "]" : "", endpoint.port,
                     endpoint.interface.name);
}

Responder::Responder(const std::vector<Interface>& interfaces, std::string token) : token_(std::move(token)) {
  for (const Interface& each : interfaces) {
    SocketAddress address = socket_address(each.address, 0);
    base::Descriptor listener(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener || ::bind(listener.get(), address.get(), address.size) != 0 || ::listen(listener.get(), 64) != 0 ||
        ::getsockname(listener.get(), address.get(), &address.size) != 0) {
      continue;
    }
    endpoints_.push_back({each, ntohs(reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port)});
    listeners_.push_back(std::move(listener));
  }
  const base::SignalsBlocked blocked;
  thread_ = std::thread([this] { work(); });
}

Responder::~Responder() {
  stop_.raise();
  thread_.join();
}

void Responder::work() {
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  for (const base::Descriptor& listener : listeners_) polled.push_back({listener.get(), POLLIN, 0});
  for (;;) {
    ::poll(polled.data(), polled.size(), -1);
    if (polled.front().revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      base::Descriptor socket(::accept4(polled[i].fd, nullptr, nullptr, SOCK_CLOEXEC));
      if (socket) reply(Connection(std::move(socket)), token_);
    }
  }
}

Path measure(const Endpoint& endpoint, const std::string& token) {
  Path path;
  path.at = endpoint;
  try {
    const Connection connection(connect_to(endpoint));
    if (!connection.send(token.data(), token.size())) fail_connection();
    const std::vector<char> bytes(kChunk);
    Reply fastest = request(connection, bytes, 0);
    for (int i = 1; i < kRoundTrips; ++i) {
      const Reply each = request(connection, bytes, 0);
      if (each.seconds < fastest.seconds) fastest = each;
    }
    path.latency = fastest.seconds / 2;
    path.clock_offset = static_cast<double>(fastest.clock_offset) * 1e-9;
    uint64_t size = kSmallestStream;
    double seconds = request(connection, bytes, size).seconds;
    while (seconds < kStreamSeconds && size < kLargestStream) {
      size *= 2;
      seconds = request(connection, bytes, size).seconds;
    }
    path.bandwidth = static_cast<double>(size) / seconds;
  } catch (const std::system_error& error) {
    path.failure = errno_text(error.code().value());
  }
  return path;
}

}  // namespace backplane::tool
