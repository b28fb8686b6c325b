// SPDX-License-Identifier: Apache-2.0
//
// gloo's unbound buffer with other waits. gloo's waits close all connections of the group on timeout, and only their
// own operation wakes them. These waits end at the operation's deadline without closing connections, notice an abort,
// can be polled, and report the length of the message.
#pragma once

#include <gloo/transport/tcp/unbound_buffer.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>

#include "health.hpp"

namespace backplane::gloo {

// Orders gloo's thread before the reuse of a buffer's memory. gloo's destructor waits until its thread has released the
// buffer; this base is destroyed after it and acquires what that thread wrote. ThreadSanitizer cannot see the
// equivalent order inside the library.
class ThreadHandover {
 public:
  void leave() { handovers_.fetch_add(1, std::memory_order_release); }

 protected:
  ThreadHandover() = default;
  ~ThreadHandover() { handovers_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint32_t> handovers_ = 0;
};

// Memory for bytes that arrive. It grows with them, because a peer may announce any length.
class ArrivingBytes {
 public:
  // The room behind the first `arrived` of `length` bytes, at least one byte if any are missing. Throws std::bad_alloc.
  std::span<char> room(uint64_t arrived, uint64_t length);
  const char* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data_;
  uint64_t capacity_ = 0;
};

class Buffer final : public ThreadHandover, public ::gloo::transport::tcp::UnboundBuffer {
 public:
  // kExact, for collectives: every message must be as long as its receive; a difference means that the ranks disagree
  // about the operation.
  enum class Lengths { kExact, kUpToSize };

  // `context` may be null if this buffer's own send and recv functions are not used.
  Buffer(const std::shared_ptr<::gloo::transport::tcp::Context>& context, std::shared_ptr<const Health> health,
         void* data, size_t size, Lengths lengths, Clock::time_point deadline);

  // For gloo's algorithms: wait until the deadline of the constructor and throw sdk::Failure. gloo's timeouts are
  // ignored.
  bool waitRecv(int* rank, std::chrono::milliseconds) override;
  bool waitSend(int* rank, std::chrono::milliseconds) override;

  // Return true once a receive (a send) is complete, false at `until`. Throw the error of gloo's pair or the failure of
  // the group.
  bool received(Clock::time_point until);
  bool sent(Clock::time_point until);
  // The same without waiting or throwing.
  bool has_received();
  bool has_sent();

  // Called by the pair on gloo's thread: a message of `length` bytes begins to arrive for a receive of `room` bytes.
  void begin_message(uint64_t length, uint64_t room, int rank);
  // Size and source of the message, after received(). A message longer than the buffer was discarded.
  uint64_t length();
  int source();

  // The number of this receive in the order of submission. Must be set before it is posted.
  static constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
  void set_order(uint64_t order) { order_ = order; }
  uint64_t order() const { return order_; }
  // Marks a receive with a named source that is queued among those from any source (see Context::swap_with_any_source).
  void displace() { displaced_.store(true); }
  bool is_displaced() const { return displaced_.load(); }

  // Completes a receive with bytes of this process. Copies nothing if they do not fit.
  void deliver(const void* data, uint64_t bytes, int rank);
  // Wakes the waiters with this exception.
  void fail(const std::exception_ptr& error) { signalException(error); }
  ::gloo::WeakNonOwningPtr<::gloo::transport::tcp::UnboundBuffer> weak() const { return getWeakNonOwningPtr(); }
  // Keeps a message for a later receive (see cancelled.hpp).
  void keep(ArrivingBytes bytes);
  const char* kept() const { return kept_.data(); }

 private:
  bool wait(const int& completions, std::condition_variable& changed, Clock::time_point until);

  const std::shared_ptr<const Health> health_;
  const Lengths lengths_;
  const Clock::time_point deadline_;
  uint64_t order_ = kLast;
  std::atomic<bool> displaced_ = false;
  // All guarded by m_.
  uint64_t length_ = 0;
  uint64_t expected_ = 0;
  int mismatched_rank_ = -1;  // the rank whose message had `length_` instead of `expected_` bytes
  ArrivingBytes kept_;
};

// gloo's weak pointer to a buffer, and a strong reference for a short time. The reference is null if the buffer has
// been destroyed. All buffers of the group's contexts are of class Buffer.
using WeakBuffer = ::gloo::WeakNonOwningPtr<::gloo::transport::tcp::UnboundBuffer>;

class BufferRef {
 public:
  explicit BufferRef(const WeakBuffer& buffer) : held_(buffer) {}
  ~BufferRef() {
    if (held_) get()->leave();
  }
  BufferRef(const BufferRef&) = delete;
  BufferRef& operator=(const BufferRef&) = delete;

  explicit operator bool() const { return static_cast<bool>(held_); }
  Buffer* get() const { return static_cast<Buffer*>(held_.operator->()); }
  Buffer* operator->() const { return get(); }
  ::gloo::NonOwningPtr<::gloo::transport::tcp::UnboundBuffer>& for_gloo() { return held_; }

 private:
  ::gloo::NonOwningPtr<::gloo::transport::tcp::UnboundBuffer> held_;
};

// The deadline of buffers that gloo's algorithms create on this thread while a DeadlineScope lives.
class DeadlineScope {
 public:
  explicit DeadlineScope(Clock::time_point deadline);
  ~DeadlineScope();
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

  static Clock::time_point current();

 private:
  const Clock::time_point outer_;
};

}  // namespace backplane::gloo
