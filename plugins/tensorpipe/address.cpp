// SPDX-License-Identifier: Apache-2.0
#include "address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <system_error>

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/listening.hpp"
#include "backplane/sdk/sockets.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr int kUvDescriptorsPerPipe = 4;

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  bool wildcard = false;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::optional<SocketAddress> parse(const std::string& text, uint16_t port) {
  SocketAddress address;
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET, text.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    address.size = sizeof(ipv4);
    address.wildcard = ipv4.sin_addr.s_addr == INADDR_ANY;
    return address;
  }
  if (inet_pton(AF_INET6, text.c_str(), &ipv6.sin6_addr) == 1) {
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    address.size = sizeof(ipv6);
    address.wildcard = IN6_IS_ADDR_UNSPECIFIED(&ipv6.sin6_addr) != 0;
    return address;
  }
  return std::nullopt;
}

// Parses "uv://10.0.0.1:1234" or "uv://[fd00::1]:1234".
std::optional<SocketAddress> parse_url(const std::string& url) {
  return parse(sdk::address_in(url),
               static_cast<uint16_t>(std::strtoul(url.c_str() + url.rfind(':') + 1, nullptr, 10)));
}

std::string reason(int code) { return std::system_category().message(code); }

// Opens `count` descriptors for a moment. Returns 0, or the errno if there are too few.
int try_descriptors(int64_t count) {
  try {
    std::list<base::EventFd> tried;
    while (count-- > 0) tried.emplace_back();
  } catch (const std::system_error& e) {
    return e.code().value();
  }
  return 0;
}

void require_descriptors(int64_t count, int32_t peer) {
  const int code = try_descriptors(count);
  if (code == 0) return;
  throw sdk::Failure(BP_RESOURCE,
                     "too few file descriptors for a connection to rank " + std::to_string(peer) + " (" + reason(code) +
                         "); raise this process's limit (ulimit -n)",
                     peer, code);
}

}  // namespace

std::string checked_address(const std::string& address) {
  const std::string what = "the address " + address.substr(0, INET6_ADDRSTRLEN);
  const std::string todo = "; set the option address to an address of this host";
  const std::optional<SocketAddress> parsed = parse(address, 0);
  if (!parsed) throw sdk::Failure(BP_INVALID, what + " is not an IPv4 or IPv6 address" + todo);
  if (parsed->wildcard) throw sdk::Failure(BP_INVALID, what + " would listen on every interface" + todo);
  const sdk::Descriptor trial(::socket(parsed->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!trial || ::bind(trial.get(), parsed->get(), parsed->size) != 0) {
    const int code = errno;
    const bool wrong = code == EADDRNOTAVAIL || code == EAFNOSUPPORT || code == EINVAL;
    throw sdk::Failure(wrong ? BP_INVALID : BP_RESOURCE, what + ": cannot listen there (" + reason(code) + ")" + todo,
                       -1, code);
  }
  return parsed->family() == AF_INET6 ? "[" + address + "]" : address;
}

void require_reachable(const std::string& url, int32_t peer) {
  if (!url.starts_with("uv://")) return require_descriptors(kShmDescriptorsPerPeer / 2, peer);
  require_descriptors(kUvDescriptorsPerPipe, peer);
  const std::optional<SocketAddress> to = parse_url(url);
  if (!to) throw sdk::Failure(BP_INVALID, "rank " + std::to_string(peer) + " has an invalid address: " + url, peer);
  // A datagram socket makes the kernel look up a route without contacting the peer. A connection that is closed again
  // would break the peer's listener.
  const sdk::Descriptor trial(::socket(to->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (trial && ::connect(trial.get(), to->get(), to->size) == 0) return;
  const int code = errno;
  throw sdk::Failure(BP_PEER_LOST,
                     "no route to rank " + std::to_string(peer) + " at " + url + " (" + reason(code) + ")", peer, code);
}

bool can_open_express() { return try_descriptors((kShmDescriptorsPerPeer + kExpressDescriptorsPerPeer) / 2) == 0; }

}  // namespace backplane::tensorpipe
