// SPDX-License-Identifier: Apache-2.0
//
// A TCP connection to each rank, which carries frames (wire.hpp). Used by one thread at a time: the poller's, then the
// one that destroys the group.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "backplane/sdk/poller.hpp"
#include "backplane/sdk/sockets.hpp"
#include "wire.hpp"

namespace backplane::nccl {

class Transport {
 public:
  // Both are called by progress.
  struct Handlers {
    std::function<void(int32_t peer, const Frame& frame)> on_frame;
    std::function<void(int32_t peer)> on_disconnect;  // nothing more arrives from the peer
  };

  Transport(std::vector<sdk::Descriptor> sockets, Handlers handlers);

  // A peer whose connection has ended and has nothing left to read; -1: none. Call only before the first progress.
  int32_t disconnected() const;
  // Queues a frame for progress or flush. Does not block.
  void send(int32_t peer, const Frame& frame);
  // Reads and writes without blocking and calls the handlers. True if anything was read or written. Watches the
  // sockets.
  bool progress(sdk::Poller::Sleep& sleep);
  // Closes all connections, which the peers notice at once.
  void disconnect();
  // Writes the queued frames. Blocks up to timeout_ns.
  void flush(int64_t timeout_ns);
  // Closes the connections once the peers have closed theirs. Blocks up to timeout_ns.
  void close(int64_t timeout_ns) { sdk::close_gently(sockets_, timeout_ns); }

 private:
  struct Link {
    std::array<char, sizeof(Frame)> in;
    size_t read = 0;  // bytes of `in`
    std::deque<Frame> out;
    size_t written = 0;  // bytes of the first in `out`
  };
  bool read_from(size_t peer);
  bool write_to(size_t peer);

  const Handlers handlers_;
  std::vector<sdk::Descriptor> sockets_;  // by rank
  std::vector<Link> links_;               // by rank
};

}  // namespace backplane::nccl
