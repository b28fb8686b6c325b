// SPDX-License-Identifier: Apache-2.0
#include "limiter.hpp"

#include <arpa/inet.h>
#include <linux/tcp.h>  // its tcp_info has the received bytes; excludes <netinet/tcp.h>, hence no unity build
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "backplane/base/pending_connections.hpp"

namespace backplane::tensorpipe {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr int kEstablished = 1;  // TCP_ESTABLISHED

// "10.0.0.1:1234" or "[fd00::1]:1234"; empty if the descriptor is no TCP socket.
std::string local_name(int descriptor) {
  sockaddr_storage name = {};
  socklen_t size = sizeof name;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(name);
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(name);
  if (name.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &ipv4.sin_addr, text.data(), text.size());
    return std::string(text.data()) + ":" + std::to_string(ntohs(ipv4.sin_port));
  }
  if (name.ss_family != AF_INET6) return "";
  ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text.data(), text.size());
  return "[" + std::string(text.data()) + "]:" + std::to_string(ntohs(ipv6.sin6_port));
}

// How long an established connection has existed without bringing a byte.
std::optional<Milliseconds> silence_of(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  const bool has_received = size < offsetof(tcp_info, tcpi_segs_out) || info.tcpi_bytes_received != 0;
  if (has_received || info.tcpi_state != kEstablished) return std::nullopt;
  return Milliseconds(info.tcpi_last_data_recv);  // without data, since the connection was established
}

}  // namespace

ConnectionLimiter::ConnectionLimiter()
    : ConnectionLimiter({base::max_pending_connections(), std::chrono::seconds(1), std::chrono::seconds(10)}) {}

ConnectionLimiter::ConnectionLimiter(const Limits& limits)
    : limits_(limits), descriptors_(::opendir("/proc/self/fd"), ::closedir) {}

bool ConnectionLimiter::is_exceeded(const std::string& url) const {
  const size_t authority = url.find("://");
  if (descriptors_ == nullptr || authority == std::string::npos) return false;
  const std::string listening = url.substr(authority + 3);
  size_t idle = 0;
  ::rewinddir(descriptors_.get());
  while (const dirent* const entry = ::readdir(descriptors_.get())) {
    const int descriptor = std::atoi(entry->d_name);  // 0 for "." and ".."
    if (local_name(descriptor) != listening) continue;
    const std::optional<Milliseconds> silence = silence_of(descriptor);
    if (!silence || *silence < limits_.idle) continue;
    if (++idle > limits_.most || *silence >= limits_.lifetime) return true;
  }
  return false;
}

}  // namespace backplane::tensorpipe
