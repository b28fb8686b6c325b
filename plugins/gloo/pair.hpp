// SPDX-License-Identifier: Apache-2.0
//
// gloo's TCP pair (the connection to one peer), corrected where gloo 0.5 exits the process or hangs:
// - gloo opens all connections when a group starts, each at a port of its own, and takes the first process that
// connects for the peer; here a connection is opened when it is first used (connection.hpp), and begins with a
// handshake (handshake.hpp);
// - gloo aborts on a message longer than its receive; here the receive fails and the payload is discarded
// (arrival.hpp);
// - gloo's thread spins if a receive's buffer has been destroyed; here the payload is discarded;
// - a write to a closed connection raises SIGPIPE and may deadlock with gloo's thread; here gloo's thread detects the
// end (link.hpp);
// - a connection that ends inside a payload leaves its waiter asleep; here the waiter is failed;
// - an exception on gloo's thread ends the process; here it ends the connection;
// - gloo's thread spins while a caller holds the pair's lock and keeps a preempted caller off its core until the next
// scheduler tick (4 ms); here it yields (see progress.hpp).
// It also cancels operations, which gloo cannot (receiving.hpp, sending.hpp). This class has gloo's virtual functions;
// each of its parts has what changes together.
#pragma once

#include <memory>
#include <mutex>

#include "connection.hpp"
#include "gloo_pair.hpp"
#include "link.hpp"
#include "pair_progress.hpp"
#include "receiving.hpp"
#include "sending.hpp"
#include "transport.hpp"

namespace backplane::gloo {

class Pair final : public GlooPair {
 public:
  Pair(Context& context, ::gloo::transport::tcp::Device* device, std::shared_ptr<const Health> health, int peer);
  ~Pair() override;

  Context& owner() const { return owner_; }
  Connection& connection() { return connection_; }
  PairProgress& progress() { return progress_; }
  Receiving& receiving() { return receiving_; }
  Sending& sending() { return sending_; }

  // Takes a connection that the peer has opened. Called on gloo's thread.
  void accept(base::Descriptor socket);

  void handleEvents(int events) override;
  // As in gloo, and open the connection or attach it to the calling thread's ProgressScope.
  using Unbound = ::gloo::transport::UnboundBuffer;
  void send(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) override;
  void recv(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) override;

 protected:
  void handleReadWrite(int events) override { progress_.handle(events); }
  bool write(Op& op) override { return sending_.write(op, progress_.is_driver()); }
  bool read() override;
  void changeState(state next) noexcept override;

 private:
  Context& owner_;
  Link link_;
  Sending sending_;
  Receiving receiving_;
  PairProgress progress_;
  Connection connection_;
};

}  // namespace backplane::gloo
