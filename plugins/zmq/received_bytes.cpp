// SPDX-License-Identifier: Apache-2.0
//
// A file of its own: linux/tcp.h and netinet/tcp.h, which lacks this field, cannot be included together.
#include "received_bytes.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace backplane::zmq {

uint64_t received_bytes(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  return ::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_bytes_received : 0;
}

}  // namespace backplane::zmq
