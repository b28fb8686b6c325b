// SPDX-License-Identifier: Apache-2.0
//
// The state of a TCP connection. Linux only.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace backplane::base {

// The kernel's tcp_info up to the bytes that have arrived, which glibc's <netinet/tcp.h> lacks; <linux/tcp.h> has them,
// but cannot be included beside it.
struct TcpInfo {
  tcp_info basic;
  uint64_t pacing_rate;
  uint64_t max_pacing_rate;
  uint64_t bytes_acked;
  uint64_t bytes_received;  // read or not
};
static_assert(offsetof(TcpInfo, bytes_received) == 128);  // as in <linux/tcp.h>

// Nothing if the descriptor is no TCP socket, or the kernel (before 4.1) does not count bytes.
inline std::optional<TcpInfo> tcp_info_of(int descriptor) {
  TcpInfo info = {};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < sizeof info) return std::nullopt;
  return info;
}

}  // namespace backplane::base
