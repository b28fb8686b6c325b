// SPDX-License-Identifier: Apache-2.0
#include "sniffer.hpp"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace backplane::conformance {
namespace {

constexpr size_t kKept = 2048;      // of each connection
constexpr int kBuffer = 64 << 20;   // bytes that may wait in the kernel
constexpr size_t kSnapshot = 4096;  // of each packet

}  // namespace

std::unique_ptr<Sniffer> Sniffer::make(std::string& why_not) {
  base::Descriptor packets(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL)));
  sockaddr_ll address = {};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex("lo"));
  if (!packets || bind(packets.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    why_not = fmt::format("network traffic cannot be captured here: {}", std::strerror(errno));
    return nullptr;
  }
  setsockopt(packets.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kBuffer, sizeof kBuffer);
  return std::unique_ptr<Sniffer>(new Sniffer(std::move(packets)));
}

void Sniffer::listen(int milliseconds) {
  pollfd polled = {socket_.get(), POLLIN, 0};
  poll(&polled, 1, milliseconds);
  unsigned char packet[kSnapshot];
  sockaddr_ll from = {};
  for (int turns = 0; turns < 100'000; ++turns) {
    socklen_t length = sizeof from;
    const ssize_t size =
        recvfrom(socket_.get(), packet, sizeof packet, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &length);
    if (size < 0) return;
    // Loopback shows each packet twice: when it is sent and when it is received.
    if (from.sll_pkttype != PACKET_OUTGOING) take(packet, static_cast<size_t>(size));
  }
}

void Sniffer::take(const unsigned char* packet, size_t size) {
  size_t header = 0;
  if (size >= sizeof(iphdr) && packet[0] >> 4 == 4) {
    header = static_cast<size_t>(packet[0] & 15) * 4;
    if (packet[9] != IPPROTO_TCP) return;
  } else if (size >= sizeof(ip6_hdr) && packet[0] >> 4 == 6) {
    header = sizeof(ip6_hdr);
    if (packet[6] != IPPROTO_TCP) return;
  }
  tcphdr tcp = {};
  if (header == 0 || size < header + sizeof tcp) return;
  std::memcpy(&tcp, packet + header, sizeof tcp);
  Stream& stream = streams_[{ntohs(tcp.source), ntohs(tcp.dest)}];
  if (tcp.syn != 0) {
    stream = {ntohl(tcp.seq) + 1, true, "", {}, {}};
    return;
  }
  const size_t data = header + static_cast<size_t>(tcp.doff) * 4;
  const uint32_t at = ntohl(tcp.seq) - stream.first;
  if (!stream.known || data >= size || at >= kKept) return;
  const size_t end = std::min(kKept, at + (size - data));
  if (stream.bytes.size() < end) {
    stream.bytes.resize(end);
    stream.here.resize(end);
  }
  for (size_t i = at; i < end; ++i) {
    stream.bytes[i] = static_cast<char>(packet[data + i - at]);
    stream.here[i] = true;
  }
  stream.ends.insert(end);
}

std::vector<Opening> Sniffer::openings(uint16_t port) const {
  std::vector<Opening> found;
  for (const auto& [ports, stream] : streams_) {
    const auto gap = std::find(stream.here.begin(), stream.here.end(), false);
    const auto size = static_cast<size_t>(gap - stream.here.begin());
    if (ports.second != port || size == 0) continue;
    found.push_back({stream.bytes.substr(0, size), {stream.ends.begin(), stream.ends.upper_bound(size)}});
  }
  return found;
}

}  // namespace backplane::conformance
