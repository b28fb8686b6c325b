// SPDX-License-Identifier: Apache-2.0
//
// The life of a pair's connection: the listening socket, the handshake (handshake.hpp), and the close. gloo takes the
// first process that connects for the peer; here it must know the rank's token.
#pragma once

#include <memory>
#include <mutex>

#include "handshake.hpp"
#include "health.hpp"
#include "link.hpp"
#include "sending.hpp"

namespace backplane::gloo {

class Context;

class Connection {
 public:
  Connection(GlooPair& pair, Context& owner, Link& link, Sending& sending, std::shared_ptr<const Health> health);

  // For any thread. They take the pair's lock.
  //
  // False if a process connected before the pair could replace gloo's own accept. Such a pair must be destroyed.
  bool is_listening();
  // The token that the peer has published, and the deadline of the pair's connect(), which comes later.
  void prepare_connect(const Token& token_of_peer, Clock::time_point deadline);
  bool is_open();
  // True once the connection was established, even if it has ended since.
  bool was_connected();
  // True once the peer's kernel has all data, or never will.
  bool is_flushed();
  // Initiates closing on gloo's thread. Does not block.
  void shut_down() noexcept;
  // Waits a short time for the close.
  void wait_closed();
  // Returns once a failure that has woken a waiter is also recorded in the context.
  void await_recorded() { const std::lock_guard lock(pair_.m_); }

  // For the pair, under its lock.
  //
  // Sets up gloo's listening socket.
  void begin_listening();
  // Replaces the listening socket by the connection of the peer, if it has come.
  void admit_peer();
  // Waits until the connection is established. Throws sdk::Failure and gloo's exceptions.
  void wait_until_connected(std::unique_lock<std::mutex>& lock);
  void before_close() noexcept;
  void on_change(bool connected) noexcept;
  void close_candidates() noexcept;

 private:
  void send_hello() noexcept;

  GlooPair& pair_;
  Context& owner_;
  Link& link_;
  Sending& sending_;
  const std::shared_ptr<const Health> health_;
  Clock::time_point connect_deadline_ = Clock::time_point::max();
  Hello hello_;  // sent if this rank connects
  Admission admission_;
  bool was_connected_ = false;
};

}  // namespace backplane::gloo
