// SPDX-License-Identifier: Apache-2.0
//
// The first bytes of a connection. gloo takes the first process that connects for the peer. Here each rank publishes a
// random token in the store, and a rank that connects sends the token of the listener and its own rank. Other
// connections are closed, and the listener waits for the peer.
#pragma once

#include <gloo/transport/tcp/loop.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "backplane/base/pending_connections.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::gloo {

using Token = std::array<char, 16>;

// Throws sdk::Failure(BP_RESOURCE) if the system has no random bytes.
Token make_token();

struct Hello {
  Token token = {};   // of the rank that listens
  int32_t rank = -1;  // of the rank that connects
};
static_assert(sizeof(Hello) == sizeof(Token) + sizeof(int32_t));

// The connections to all listening sockets of a group that have not sent their hello. Thread-safe.
class PendingConnections {
 public:
  // At least one per other rank may be pending: the ranks may all connect at once.
  explicit PendingConnections(int world_size)
      : most_(std::max(base::max_pending_connections(), static_cast<size_t>(world_size - 1))) {}

  // Adds a connection. Shuts down another one if there are too many: the oldest of the listener that has the most,
  // which then closes it.
  void add(const void* listener, int socket);
  // Call before the socket is closed.
  void remove(int socket) noexcept;

 private:
  struct Entry {
    const void* listener;
    int socket;
  };

  const size_t most_;
  std::mutex mutex_;
  std::vector<Entry> entries_;  // the oldest first
};

// The connections of one listening socket that have not sent their hello. Used under the lock of the pair.
class Admission {
 public:
  Admission(const Hello& expected, PendingConnections& all) : expected_(expected), all_(all) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Accepts connections and reads from them, without blocking. Returns the connection of the peer once it has sent the
  // expected hello; the others are closed then. `handler` is called by the epoll descriptor when this function must be
  // called again. Throws ::gloo::IoException if no connection can be accepted.
  base::Descriptor admit(int listener, int epoll, ::gloo::transport::tcp::Handler* handler);
  // Closes all connections.
  void close(int epoll) noexcept;
  // Whether a connection was closed, since the last call, because it sent something else.
  bool take_refused() { return std::exchange(has_refused_, false); }

 private:
  struct Candidate {
    base::Descriptor socket;
    Hello hello;
    size_t arrived = 0;
  };
  enum class Result { kIncomplete, kPeer, kRefused };

  bool accept_one(int listener, int epoll, ::gloo::transport::tcp::Handler* handler);
  base::Descriptor read_all(int epoll);
  Result read(Candidate& candidate) const;
  void close(int epoll, base::Descriptor& socket) noexcept;

  const Hello expected_;
  PendingConnections& all_;
  std::vector<Candidate> candidates_;  // the oldest first
  bool has_refused_ = false;
};

}  // namespace backplane::gloo
