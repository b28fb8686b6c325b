// SPDX-License-Identifier: Apache-2.0
//
// The socket of a pair in use: reads, writes, events, and the end of the connection. Used by gloo's thread and by the
// driver. All functions require the pair's lock.
#pragma once

#include <sys/epoll.h>
#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "gloo_pair.hpp"

namespace backplane::gloo {

class Link {
 public:
  static constexpr uint32_t kIn = EPOLLIN;
  static constexpr uint32_t kOut = EPOLLOUT;
  static constexpr uint32_t kNone = EPOLLET;  // edge-triggered: a broken connection is reported once

  explicit Link(GlooPair& pair) : pair_(pair) {}

  // Returns 0 if there are no data or the connection has ended.
  size_t receive(void* to, size_t bytes);
  // Returns the number of bytes written, or nothing if the socket takes none or the connection has ended. Leaves errors
  // on a user's thread to gloo's thread, which sees them at once: closing here would wait for that thread, which may
  // wait for a lock of the caller.
  std::optional<size_t> send(std::span<iovec> pieces);

  // Sets the events that wake gloo's thread. A broken connection always does.
  void expect_events(uint32_t events, int change = EPOLL_CTL_MOD) noexcept;
  // gloo removes its descriptor from its loop on close and aborts if it is not registered, as with a connection that
  // ends right after accept.
  void ensure_registered() noexcept { expect_events(kNone, EPOLL_CTL_ADD); }

  // Ends a connection because of this rank. Does not close, because that would wait for gloo's thread, which may wait
  // for a lock of the caller.
  void end(const char* why) noexcept;
  // Throws ::gloo::IoException with the reason of end(), if that was called.
  void check_not_ended() const;
  // Closes the connection with the reason of end(), or else with `seen`. Only on gloo's thread.
  void close(const std::string& seen);

  // Whether a read has seen the end of the connection and gloo's thread has not yet.
  bool has_ended() const { return has_ended_; }
  void set_ended(bool ended) { has_ended_ = ended; }

  // gloo's thread handles events of the pair for the life of this object.
  class OnLoop {
   public:
    explicit OnLoop(Link& link) : link_(link) { link_.on_loop_ = true; }
    ~OnLoop() { link_.on_loop_ = false; }
    OnLoop(const OnLoop&) = delete;
    OnLoop& operator=(const OnLoop&) = delete;

   private:
    Link& link_;
  };
  bool is_on_loop() const { return on_loop_; }

 private:
  GlooPair& pair_;
  const char* end_reason_ = nullptr;  // of end()
  bool on_loop_ = false;
  bool has_ended_ = false;
};

}  // namespace backplane::gloo
