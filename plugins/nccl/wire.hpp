// SPDX-License-Identifier: Apache-2.0
//
// Small frames between the ranks, over a TCP connection to each: what has to be agreed about a message before NCCL can
// carry it.
//
//     announce   sender: here is a message of `size` bytes with `tag`; `id` is the sender's number for it
//     empty      sender: here is a message of no bytes with `tag`; that is all of it
//     ready      receiver: a receive has taken message `id`
//     refused    receiver: its receive was too small for message `id`; it counts as received
//     begin      sender: message `id` goes into the channel now; the first one brings the id of the communicator
//     withdraw   sender: message `id` was cancelled
//     bye        no more frames follow
//
// Frames of one sender arrive in order. A receiver enters transfers in that order, so both ends of a channel execute
// the same sequence.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "api.hpp"
#include "backplane/sdk/poller.hpp"
#include "backplane/sdk/sockets.hpp"

namespace backplane::nccl {

enum class FrameKind : uint32_t { kAnnounce = 1, kEmpty, kReady, kRefused, kBegin, kWithdraw, kBye };

struct Frame {
  FrameKind kind = FrameKind::kBye;
  uint32_t has_channel = 0;  // begin: 1 if `channel` is set
  uint64_t tag = 0;
  uint64_t id = 0;
  uint64_t size = 0;  // bytes of the message
  ncclUniqueId channel = {};
};

class Wire {
 public:
  // `arrived`: a frame came. `ended`: nothing comes from this peer any more. Both are called by progress.
  struct Handlers {
    std::function<void(int32_t peer, const Frame& frame)> arrived;
    std::function<void(int32_t peer)> ended;
  };

  Wire(std::vector<sdk::Descriptor> sockets, Handlers handlers);

  // A peer whose connection has ended with nothing left to read, -1: none. Before the first progress.
  int32_t lost() const;
  // Any thread, does not block. Wake the poller afterwards.
  void send(int32_t peer, const Frame& frame);
  // Reads and writes what can be, and calls the handlers; true if anything has moved. Watches the sockets. One thread.
  bool progress(sdk::Poller::Sleep& sleep);
  // Cuts all connections, so that the others learn of it. The thread of progress.
  void cut();
  // When progress has ended; both block up to timeout_ns. Writes what is queued:
  void flush(int64_t timeout_ns);
  // Waits until the peers have closed as well.
  void close(int64_t timeout_ns) { sdk::close_gently(sockets_, timeout_ns); }

 private:
  struct Link {
    std::array<char, sizeof(Frame)> in;
    size_t read = 0;
    std::deque<Frame> out;  // the first may have been written in part
    size_t written = 0;
  };
  bool read_from(size_t peer);
  bool write_to(size_t peer);
  bool has_to_write(size_t peer);
  void end(size_t peer);

  const Handlers handlers_;
  std::vector<sdk::Descriptor> sockets_;  // by rank
  std::mutex mutex_;                      // of `out`
  std::vector<Link> links_;
};

}  // namespace backplane::nccl
