// SPDX-License-Identifier: Apache-2.0
//
// Bounds the unfinished frames of a server's clients, in bytes and in time. A frame counts with its announced size, so
// that each one that is read can be completed. Beyond the limit, frames wait in the order of their arrival. Large
// frames have a separate limit, so that they do not delay the others.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "security/connection_limiter.hpp"

namespace backplane::core {

struct FrameLimits {
  size_t free_bytes = 4096;                        // frames of up to this size are not bounded
  size_t large_bytes = size_t{1} << 20;            // larger frames are large
  size_t max_bytes = size_t{64} << 20;             // of frames that are not large, together
  size_t max_large_bytes = size_t{260} << 20;      // of large ones: four of the largest
  std::chrono::nanoseconds grace{10'000'000'000};  // for the first bytes
  size_t bytes_per_second = size_t{256} << 10;     // after the grace, on average
};

// Not synchronised.
class FrameBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit FrameBudget(const FrameLimits& limits) : limits_(limits) {}

  // A frame of a connection has begun to arrive. True if it may be read now. If not, a later `finish` returns the
  // connection.
  bool begin(ConnectionId connection, size_t size, Time now);
  // The frame is complete, or the connection closed. Ignores unknown ones. Returns the connections whose frames may be
  // read from now on.
  std::vector<ConnectionId> finish(ConnectionId connection, Time now);
  // The connections whose frames are read and arrive too slowly. `arrived` returns the bytes of a connection's frame.
  std::vector<ConnectionId> slow(Time now, const std::function<size_t(ConnectionId)>& arrived) const;
  // The connections whose frames are not read yet.
  std::vector<ConnectionId> waiting() const;
  // The server did not run for a while: measures all frames from now on.
  void restart(Time now);

 private:
  struct Frame {
    size_t size = 0;
    bool admitted = false;
    Time begin = {};  // of reading
    size_t pool = 0;
  };
  struct Pool {
    size_t max_bytes = 0;
    size_t bytes = 0;  // of admitted frames
    std::deque<ConnectionId> waiting = {};
  };

  bool admit(Frame& frame, Time now);

  const FrameLimits limits_;
  std::array<Pool, 2> pools_{Pool{limits_.max_bytes}, Pool{limits_.max_large_bytes}};
  std::map<ConnectionId, Frame> frames_;
};

}  // namespace backplane::core
