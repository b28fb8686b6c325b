// SPDX-License-Identifier: Apache-2.0
//
// For backends over TCP: a connected, non-blocking socket to each other rank, made through the store. Linux only.
//
// Each rank listens on an address of this host and a port that the kernel picks. It publishes both in the store with a
// random secret that only this job can read. It connects to lower ranks and accepts higher ones. A connection begins
// with a greeting that holds the secret and the rank; connections without a valid greeting are closed. The listening
// sockets are closed at the end.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "backplane/base/deadline.hpp"
#include "backplane/base/descriptor.hpp"
#include "listening.hpp"
#include "process_group.hpp"

namespace backplane::sdk {

using base::Deadline;
using base::Descriptor;

namespace detail {

using Secret = std::array<unsigned char, 16>;
struct Greeting {  // the first bytes of each connection
  Secret secret;
  int32_t rank;
  int32_t world_size;
};
struct Endpoint {  // in the store, before host_identity()
  Secret secret;
  uint32_t size;
  sockaddr_storage address;
};

inline std::string endpoint_key(int32_t rank) { return "socket." + std::to_string(rank); }

[[noreturn]] inline void fail_socket(int32_t status, const std::string& what, int32_t peer = -1) {
  const int code = errno;
  throw Failure(status, what + ": errno " + std::to_string(code) + " (" + ::strerrordesc_np(code) + ")", peer, code);
}

inline Descriptor listen_at(const std::string& address, int32_t world_size, Endpoint& mine) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), "0", &hints, &found) != 0) {
    throw Failure(BP_INVALID, "the address is not a numeric one, such as 127.0.0.1: '" + address + "'");
  }
  mine.size = found->ai_addrlen;
  std::memcpy(&mine.address, found->ai_addr, mine.size);
  ::freeaddrinfo(found);
  Descriptor listener(::socket(mine.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  auto* name = reinterpret_cast<sockaddr*>(&mine.address);
  if (!listener || ::bind(listener.get(), name, mine.size) != 0 || ::listen(listener.get(), world_size + 16) != 0 ||
      ::getsockname(listener.get(), name, &mine.size) != 0) {
    fail_socket(errno == EADDRNOTAVAIL ? BP_INVALID : BP_RESOURCE, "cannot listen at the address " + address);
  }
  if (::getrandom(mine.secret.data(), mine.secret.size(), 0) != static_cast<ssize_t>(mine.secret.size())) {
    fail_socket(BP_RESOURCE, "no random number to be had");
  }
  return listener;
}

// Waits until `fd` is ready, in short steps that notice an abort. Throws at the deadline.
inline void await_socket(const Context& context, int fd, short events, const Deadline& deadline,
                         const std::string& what) {
  pollfd item = {fd, events, 0};
  for (;;) {
    if (context.host.abort_requested()) throw Failure(BP_CANCELLED, what + ": the group is being aborted");
    const int64_t left_ms = deadline.left_ns() < 0 ? 50 : deadline.left_ns() / 1'000'000;
    if (::poll(&item, 1, static_cast<int>(std::min<int64_t>(left_ms, 50))) > 0) return;
    if (deadline.passed()) throw Failure(BP_TIMEOUT, what + ": timed out during init");
  }
}

// Waits for the value that a peer publishes. The Failure names the peer, which the store does not know.
inline std::string await_value(const Context& context, const std::string& key, const Deadline& deadline, int32_t peer,
                               const std::string& what) {
  try {
    return context.host.store_get(key, deadline.left_ns());
  } catch (const Failure& why) {
    throw Failure(why.status(), what + ": " + why.what(), peer, why.native_code());
  }
}

// The address of an endpoint, without its port.
inline std::string address_of(const Endpoint& endpoint) {
  std::array<char, NI_MAXHOST> text{};
  const auto* const name = reinterpret_cast<const sockaddr*>(&endpoint.address);
  const socklen_t size = std::min<uint32_t>(endpoint.size, sizeof endpoint.address);
  const int code = ::getnameinfo(name, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text.data() : "an unknown address";
}

inline Listener listener_of(int32_t rank, const Endpoint& endpoint, std::string host) {
  return {"rank " + std::to_string(rank), std::move(host), address_of(endpoint)};
}

inline Descriptor connect_to(const Context& context, int32_t peer, const Endpoint& mine, const Deadline& deadline) {
  std::string what = "connecting to rank " + std::to_string(peer);
  const std::string value = await_value(context, endpoint_key(peer), deadline, peer, what);
  Endpoint to{};
  if (value.size() < sizeof to) throw Failure(BP_INTERNAL, what + ": its address in the store is malformed", peer);
  std::memcpy(&to, value.data(), sizeof to);
  refuse_loopback_between_hosts(listener_of(context.rank, mine, base::host_identity()),
                                listener_of(peer, to, value.substr(sizeof to)), peer);
  what += " at " + address_of(to);
  Descriptor fd(::socket(to.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail_socket(BP_RESOURCE, what, peer);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) fail_socket(BP_PEER_LOST, what, peer);
    await_socket(context, fd.get(), POLLOUT, deadline, what);
    socklen_t size = sizeof errno;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &errno, &size) != 0 || errno != 0) {
      fail_socket(BP_PEER_LOST, what, peer);
    }
  }
  const Greeting hello{to.secret, context.rank, context.world_size};  // fits any socket's buffer
  if (::send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) fail_socket(BP_PEER_LOST, what, peer);
  return fd;
}

// An accepted connection whose greeting is still incomplete.
struct PendingConnection {
  Descriptor fd;
  Greeting hello{};
  size_t have = 0;
};

// The peer's rank; -1: the greeting is incomplete; -2: it is invalid, or the connection was closed.
inline int32_t identify(PendingConnection& connection, const Context& context, const Secret& secret) {
  const ssize_t got = ::recv(connection.fd.get(), reinterpret_cast<char*>(&connection.hello) + connection.have,
                             sizeof connection.hello - connection.have, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
  if (got <= 0) return -2;
  connection.have += static_cast<size_t>(got);
  if (connection.have < sizeof connection.hello) return -1;
  const bool is_valid = connection.hello.secret == secret && connection.hello.world_size == context.world_size &&
                        connection.hello.rank > context.rank && connection.hello.rank < context.world_size;
  return is_valid ? connection.hello.rank : -2;
}

inline std::string missing(const std::vector<Descriptor>& sockets, int32_t above) {
  std::string ranks;
  for (size_t rank = static_cast<size_t>(above) + 1; rank < sockets.size(); ++rank) {
    if (!sockets[rank]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks;
}

// Accepts the higher ranks. Beyond `room` pending connections, the oldest one is closed.
inline void accept_above(const Context& context, int listener, const Secret& secret, const Deadline& deadline,
                         std::vector<Descriptor>& sockets) {
  const size_t room = static_cast<size_t>(context.world_size) + 16;
  int32_t expected = context.world_size - 1 - context.rank;
  std::deque<PendingConnection> pending;
  while (expected > 0) {
    std::vector<pollfd> items = {{listener, POLLIN, 0}};
    for (const PendingConnection& connection : pending) items.push_back({connection.fd.get(), POLLIN, 0});
    if (context.host.abort_requested()) throw Failure(BP_CANCELLED, "the group is being aborted");
    if (deadline.passed()) {
      throw Failure(BP_TIMEOUT, "rank " + missing(sockets, context.rank) + " did not connect to rank " +
                                    std::to_string(context.rank) + " in time");
    }
    if (::poll(items.data(), items.size(), 50) <= 0) continue;
    for (int fd = -1; (fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
      pending.push_back({Descriptor(fd), {}, 0});
      if (pending.size() > room) pending.pop_front();
    }
    if (errno == EMFILE || errno == ENFILE) fail_socket(BP_RESOURCE, "cannot accept the other ranks");
    std::erase_if(pending, [&](PendingConnection& connection) {
      const int32_t rank = identify(connection, context, secret);
      if (rank == -1) return false;
      if (rank >= 0 && !sockets[static_cast<size_t>(rank)]) {
        sockets[static_cast<size_t>(rank)] = std::move(connection.fd);
        --expected;
      }
      return true;
    });
  }
}

}  // namespace detail

// Connects this rank to each rank of the group. Returns the sockets by rank; the own one is empty. `address` is a
// numeric address of this host that the other ranks can reach; if empty, listening_address() chooses one. The sockets
// are non-blocking and close-on-exec, with TCP_NODELAY; write with MSG_NOSIGNAL. For init: blocks up to
// context.timeout_ns, fails with BP_CANCELLED on abort. Throws BP_INVALID for a bad address, BP_TIMEOUT naming the
// missing ranks, BP_PEER_LOST, BP_RESOURCE.
inline std::vector<Descriptor> connect_all(const Context& context, const std::string& address) {
  const Deadline deadline = Deadline::after(context.timeout_ns);
  std::vector<Descriptor> sockets(static_cast<size_t>(context.world_size));
  if (context.world_size == 1) return sockets;
  detail::Endpoint mine{};
  const Descriptor listener = detail::listen_at(listening_address(context, address), context.world_size, mine);
  const std::string endpoint(reinterpret_cast<const char*>(&mine), sizeof mine);
  context.host.store_set(detail::endpoint_key(context.rank), endpoint + base::host_identity());
  for (int32_t peer = 0; peer < context.rank; ++peer) {
    sockets[static_cast<size_t>(peer)] = detail::connect_to(context, peer, mine, deadline);
  }
  detail::accept_above(context, listener.get(), mine.secret, deadline, sockets);
  for (const Descriptor& fd : sockets) {
    const int one = 1;
    if (fd) ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // optional: only affects speed
  }
  return sockets;
}

// Closes connections without losing written data: shuts down the sending side and reads until the peer has done the
// same (closing with unread data would discard data in flight). Blocks up to timeout_ns, then closes all.
inline void close_gently(std::vector<Descriptor>& sockets, int64_t timeout_ns) {
  const Deadline deadline = Deadline::after(timeout_ns);
  for (const Descriptor& fd : sockets) {
    if (fd) ::shutdown(fd.get(), SHUT_WR);
  }
  std::vector<char> trash(size_t{1} << 16);
  for (Descriptor& fd : sockets) {
    while (fd) {
      const ssize_t got = ::recv(fd.get(), trash.data(), trash.size(), 0);
      if (got > 0 && !deadline.passed()) continue;
      pollfd item = {fd.get(), POLLIN, 0};
      if (got < 0 && errno == EAGAIN && ::poll(&item, 1, static_cast<int>(deadline.left_ns() / 1'000'000)) > 0)
        continue;
      fd.reset();
    }
  }
}

}  // namespace backplane::sdk
