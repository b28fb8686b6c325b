// SPDX-License-Identifier: Apache-2.0
//
// gloo's unbound buffer with waits of our own. Gloo's close every connection of the group when their time is over, and
// nothing but their own operation wakes them; these end at the operation's deadline without touching the connections,
// notice an abort, can be asked without waiting, and know how long the message was.
#pragma once

#include <gloo/transport/tcp/unbound_buffer.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

#include "fault.hpp"

namespace backplane::gloo {

// All that gloo's thread did with a buffer happens before its memory is used for something else: gloo's destructor
// waits until that thread has let go of the buffer, and this base, which is destroyed after it, orders what both did.
// (gloo's own order is made of atomics in a library that ThreadSanitizer does not see.)
class Visited {
 public:
  void leave() { visits_.fetch_add(1, std::memory_order_release); }

 protected:
  Visited() = default;
  ~Visited() { visits_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint32_t> visits_ = 0;
};

class Buffer final : public Visited, public ::gloo::transport::tcp::UnboundBuffer {
 public:
  // Of a collective every message must be as long as its receive; otherwise the ranks disagree about the operation.
  enum class Lengths { kExact, kUpToSize };

  // `context` may be null for a buffer that is not sent from or received into by its own calls.
  Buffer(const std::shared_ptr<::gloo::transport::tcp::Context>& context, std::shared_ptr<const Watch> watch,
         void* data, size_t size, Lengths lengths, Clock::time_point deadline);

  // For gloo's algorithms: wait until the deadline given above and throw sdk::Failure; gloo's timeouts are ignored.
  bool waitRecv(int* rank, std::chrono::milliseconds) override;
  bool waitSend(int* rank, std::chrono::milliseconds) override;

  // True once a receive (a send) is complete, false if `until` came first. Throws what gloo's pair died of, or the
  // fault of the group.
  bool received(Clock::time_point until);
  bool sent(Clock::time_point until);
  // The same without waiting or throwing.
  bool has_received();
  bool has_sent();

  // For the pair, on gloo's thread: a message of `length` bytes begins to arrive for a receive of `room` bytes.
  void announce(uint64_t length, uint64_t room, int rank);
  // After received(): the message's size and its sender. A message longer than the buffer was thrown away.
  uint64_t length();
  int source();

  // Which of the group's receives of messages this is, counted in the order of submission. Set before it is posted.
  static constexpr uint64_t kYoungest = std::numeric_limits<uint64_t>::max();
  void set_age(uint64_t age) { age_ = age; }
  uint64_t age() const { return age_; }
  // A receive that names its source and waits among those from any source (see Context::exchange_any).
  void displace() { displaced_.store(true); }
  bool is_displaced() const { return displaced_.load(); }

  // Completes a receive with bytes of this process; at most size() of them are copied.
  void deliver(const void* data, uint64_t bytes, int rank);
  // Wakes the waiters with this exception.
  void fail(const std::exception_ptr& error) { signalException(error); }
  ::gloo::WeakNonOwningPtr<::gloo::transport::tcp::UnboundBuffer> weak() const { return getWeakNonOwningPtr(); }
  // A message too long for this buffer, kept until it is asked for (a receive that was given up: see pair.hpp).
  void keep(std::unique_ptr<char[]> bytes);
  const char* kept() const { return kept_.get(); }

 private:
  bool wait(const int& completions, std::condition_variable& changed, Clock::time_point until);

  const std::shared_ptr<const Watch> watch_;
  const Lengths lengths_;
  const Clock::time_point deadline_;
  uint64_t age_ = kYoungest;
  std::atomic<bool> displaced_ = false;
  // All under m_.
  uint64_t length_ = 0;
  uint64_t expected_ = 0;
  int mismatched_rank_ = -1;  // the rank whose message had `length_` instead of `expected_` bytes
  std::unique_ptr<char[]> kept_;
};

// What gloo's operations hold of a buffer, and a short use of it: null if the buffer is gone, else it stays until the
// end of the visit. All buffers of the group's contexts are of the class above.
using Held = ::gloo::WeakNonOwningPtr<::gloo::transport::tcp::UnboundBuffer>;

class Visit {
 public:
  explicit Visit(const Held& buffer) : held_(buffer) {}
  ~Visit() {
    if (held_) get()->leave();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  explicit operator bool() const { return static_cast<bool>(held_); }
  Buffer* get() const { return static_cast<Buffer*>(held_.operator->()); }
  Buffer* operator->() const { return get(); }
  ::gloo::NonOwningPtr<::gloo::transport::tcp::UnboundBuffer>& for_gloo() { return held_; }

 private:
  ::gloo::NonOwningPtr<::gloo::transport::tcp::UnboundBuffer> held_;
};

// Gloo's algorithms create their buffers themselves; those made on this thread during the life of a DeadlineScope end
// at its deadline.
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
