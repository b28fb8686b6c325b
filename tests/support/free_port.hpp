// SPDX-License-Identifier: Apache-2.0
//
// A port for a server that is started later, perhaps by another process.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <random>
#include <stdexcept>

namespace backplane::test {

// A TCP port of 127.0.0.1 on which no process listens. The system gives it to no socket by itself: another test's
// connection could get such a port before the server listens.
inline uint16_t free_port() {
  constexpr int kFirst = 10'000;
  constexpr int kTries = 100;
  int first_given = 32'768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_given;
  const bool has_room = first_given > kFirst + 1'000;
  std::random_device seed;
  std::uniform_int_distribution<int> ports(has_room ? kFirst : first_given, has_room ? first_given - 1 : 60'000);
  for (int i = 0; i < kTries; ++i) {
    const auto port = static_cast<uint16_t>(ports(seed));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_free = ::bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(probe);
    if (is_free) return port;
  }
  throw std::runtime_error("no free port was found");
}

}  // namespace backplane::test
