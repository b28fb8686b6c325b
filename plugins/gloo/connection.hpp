// SPDX-License-Identifier: Apache-2.0
//
// The life of a pair's connection: it is opened when the pair is first used, by either rank, and never again. If both
// ranks connect at once, the connection on which the lower rank has sent its hello is used; the lower rank keeps the
// other one until its own is established, in case that fails. Nothing but the handshake is written before the rank that
// listens has answered, so that no message is lost (share/doc/design.md). gloo's states: INITIALIZING, not used yet;
// CONNECTING, this rank connects; CONNECTED; CLOSED, for ever.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "backplane/base/descriptor.hpp"
#include "handshake.hpp"
#include "health.hpp"
#include "link.hpp"
#include "sending.hpp"

namespace backplane::gloo {

class Context;

class Connection {
 public:
  Connection(GlooPair& pair, const Context& owner, Link& link, Sending& sending)
      : pair_(pair), owner_(owner), link_(link), sending_(sending) {}

  // For any thread. They take the pair's lock and do not block on the network.
  //
  // False if a process connected to gloo's listening socket before it was closed. Such a pair must be destroyed.
  bool is_unused();
  // Where the peer listens. Call before open().
  void set_endpoint(const Endpoint& endpoint);
  // Begins to connect if nobody has. gloo's thread does the rest. Throws sdk::Failure(BP_RESOURCE) without a
  // descriptor; the pair can then be tried again.
  void open() {
    if (!is_used_.load(std::memory_order_acquire)) begin();
  }
  bool is_connecting();
  // Whether there is a connection, or this rank connects.
  bool is_used_and_open();
  bool has_ended();
  // True once the connection was established, even if it has ended since.
  bool was_connected();
  // True once the peer's kernel has all data, or never will.
  bool is_flushed();
  // Initiates closing on gloo's thread, and refuses connections of the peer.
  void shut_down() noexcept;
  // Waits a short time for the close.
  void wait_closed();
  // Returns once a failure that has woken a waiter is also recorded in the context.
  void await_recorded() { const std::lock_guard lock(pair_.m_); }

  // For the pair, under its lock.
  //
  // Closes gloo's listening socket, because the group has one (listener.hpp).
  void close_gloos_listener() noexcept;
  // Continues to connect, on gloo's thread.
  void advance() noexcept;
  // Takes a connection that the peer has opened, on gloo's thread.
  void accept(base::Descriptor socket) noexcept;
  void on_change(bool connected) noexcept;
  void before_close() noexcept;

 private:
  void begin();
  void say_hello();
  void read_answer();
  void fail(const std::string& why);
  void adopt(base::Descriptor socket);
  void establish();

  GlooPair& pair_;
  const Context& owner_;
  Link& link_;
  Sending& sending_;
  std::atomic<bool> is_used_ = false;
  Endpoint endpoint_;  // of the peer
  Token answer_ = {};
  size_t answered_ = 0;  // bytes of answer_
  bool has_said_hello_ = false;
  base::Descriptor spare_;  // opened by the peer, used if this rank cannot connect
  bool was_connected_ = false;
};

}  // namespace backplane::gloo
