// SPDX-License-Identifier: Apache-2.0
#include "run/torch_port.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "backplane/base/descriptor.hpp"
#include "common/failure.hpp"

namespace backplane::tool {
namespace {

constexpr int kTries = 100;
constexpr int kLeastPort = 10000;

// The first of the ports that the system gives to sockets which ask for none.
int first_given_port() {
  int first = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

// torch listens on all addresses.
bool is_free_port(uint16_t port) {
  const base::Descriptor tried(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return ::bind(tried.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

uint16_t choose_torch_port(const Job& job) {
  if (job.nodes > 1) return static_cast<uint16_t>(job.master_port + 1);
  // The system gives these to no socket by itself, so that none gets the port before torch listens.
  const int end = std::max(first_given_port(), kLeastPort + kTries);
  std::random_device entropy;
  std::uniform_int_distribution<int> ports(kLeastPort, end - 1);
  for (int i = 0; i < kTries; ++i) {
    const auto port = static_cast<uint16_t>(ports(entropy));
    if (port != job.master_port && is_free_port(port)) return port;
  }
  throw Failure(kFailed, fmt::format("--torch: {} ports from {} to {} are in use", kTries, kLeastPort, end - 1));
}

}  // namespace backplane::tool
