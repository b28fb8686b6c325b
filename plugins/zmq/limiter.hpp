// SPDX-License-Identifier: Apache-2.0
//
// Limits the TCP connections that a socket has accepted and that have not yet proven to be of a rank, in number and in
// time: clients outside the group cannot use up the process's descriptors. libzmq has no such limit. Its monitor
// reports each accepted descriptor, and each received message has the descriptor of its connection.
//
// Never blocks. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <zmq.hpp>

#include "backplane/base/descriptor.hpp"
#include "backplane/base/event_fd.hpp"
#include "options.hpp"

namespace backplane::zmq {

class ConnectionLimiter {
 public:
  // Construct it before `listening` listens, and close it before that socket. `peers`: the number of ranks that may
  // connect. Throws Failure.
  ConnectionLimiter(::zmq::context_t& context, ::zmq::socket_t& listening, size_t peers);
  ~ConnectionLimiter();
  ConnectionLimiter(const ConnectionLimiter&) = delete;
  ConnectionLimiter& operator=(const ConnectionLimiter&) = delete;

  // Becomes readable after accepted and closed connections; like ZMQ_FD, only after enforce().
  int descriptor();
  bool has_pending() const { return !pending_.empty(); }
  // Takes note of accepted and closed connections, as the others do.
  void update() { take_events(std::chrono::steady_clock::now()); }
  // The connection that brought this message is of a rank.
  void prove(const ::zmq::message_t& frame);
  // Closes connections beyond the limits, at most once in a millisecond. Call when all received messages are processed.
  // Returns the latest time of the next call.
  TimePoint enforce(TimePoint now);
  void close();

 private:
  struct Connection {
    int descriptor;
    uint64_t cookie;  // of the kernel's socket: libzmq may have closed the descriptor, and another file may have it
    TimePoint since;
  };

  void take_events(TimePoint now);
  void accepted(int descriptor, TimePoint now);
  void closed(int descriptor);
  void forget_pending();
  // Shuts it down, and forgets it: the reference is then invalid.
  void end(const Connection& connection);

  const size_t peers_;
  ::zmq::socket_t& listening_;
  ::zmq::socket_t events_;
  std::map<uint64_t, Connection> pending_;  // by age
  std::map<int, uint64_t> ages_;            // of `pending_`, by descriptor
  std::set<int> proven_;                    // descriptors
  uint64_t last_age_ = 0;
  TimePoint enforced_at_;  // the last time
  bool is_off_ = false;    // libzmq does not tell the descriptors of messages
  base::EventFd unused_;
  base::Descriptor shut_;  // a duplicate of the connection that is shut down, else of `unused_`
};

}  // namespace backplane::zmq
