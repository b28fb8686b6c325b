// SPDX-License-Identifier: Apache-2.0
#include "limiter.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "backplane/base/pending_connections.hpp"
#include "backplane/base/tcp_info.hpp"

namespace backplane::tensorpipe {
namespace {

using Milliseconds = std::chrono::milliseconds;

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
  const std::optional<base::TcpInfo> info = base::tcp_info_of(descriptor);
  if (!info || info->bytes_received != 0 || info->basic.tcpi_state != TCP_ESTABLISHED) return std::nullopt;
  return Milliseconds(info->basic.tcpi_last_data_recv);  // without data, since the connection was established
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
