// SPDX-License-Identifier: Apache-2.0
//
// Progress of operations. The thread that waits for an operation moves its bytes (the driver). gloo alone would use a
// thread of its own, which costs two thread switches per message, and up to a scheduler tick (4 ms) if both threads
// share a core. While threads of the program drive, gloo's thread sleeps on the connections that they have taken.
#pragma once

#include <gloo/transport/tcp/device.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "backplane/sdk/spin_policy.hpp"
#include "health.hpp"

namespace backplane::gloo {

class Context;
class Pair;

// The connections taken by the drivers of a group. They return to gloo's thread as soon as a passive waiter exists, or
// after some time without a driver.
class ProgressEngine final : private ::gloo::transport::tcp::Handler {
 public:
  // Throws sdk::Failure(BP_RESOURCE) if descriptors are exhausted.
  explicit ProgressEngine(::gloo::transport::tcp::Device& device);
  // Requires that no thread drives.
  ~ProgressEngine() override;
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  // While there are passive waiters, connections belong to gloo's thread except while a thread drives.
  void add_passive_waiter();
  void remove_passive_waiter() { passive_waiters_.fetch_sub(1); }

 private:
  friend class ProgressScope;

  bool try_acquire() { return !acquired_.exchange(true); }
  void release();
  void give_back_connections();  // requires the driver role
  void handleEvents(int events) override;
  void check_idle();
  void set_timer(bool on);

  ::gloo::transport::tcp::Device& device_;
  int timer_ = -1;
  std::atomic<bool> acquired_ = false;
  std::atomic<int> passive_waiters_ = 0;
  std::atomic<uint64_t> scopes_ = 0;     // scopes that have ended
  uint64_t scopes_seen_ = 0;             // by the timer, on gloo's thread
  std::atomic<uint32_t> handovers_ = 0;  // of gloo's thread
  // Used by the driver only.
  sdk::SpinPolicy spin_policy_{std::chrono::microseconds(100)};
  bool timer_on_ = false;
  std::vector<Pair*> pairs_;
  std::vector<pollfd> polled_;  // of the same connections
};

// A thread, or an operation, that waits without driving, for the life of this object.
class PassiveWaiter {
 public:
  // `context` may be null (a group of one). Otherwise it must outlive this object.
  explicit PassiveWaiter(Context* context);
  ~PassiveWaiter();
  PassiveWaiter(const PassiveWaiter&) = delete;
  PassiveWaiter& operator=(const PassiveWaiter&) = delete;

 private:
  ProgressEngine* const engine_;
};

// Makes the calling thread the driver of a group for the life of this object, or a passive waiter if another thread
// drives. The driver serves the operations of all threads on the taken connections. Passive waiters sleep until a
// buffer is completed by the driver or by gloo's thread.
class ProgressScope {
 public:
  // `context` may be null (a group of one).
  explicit ProgressScope(Context* context);
  ~ProgressScope();
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;

  // The scope of the calling thread; null if it drives no connection.
  static ProgressScope* current();
  // Whether the calling thread drives this group.
  static bool drives(const Context& context);
  // Takes a connection that the calling thread is about to use, if that thread drives its group. Until the connection
  // is established gloo's thread serves it, and then this scope drives nothing.
  static void attach(Pair& pair);

  // Sends pending data and waits until bytes have moved or `until`. May return early. A connection that has ended is
  // left to gloo's thread; afterwards this scope drives nothing.
  void advance(Clock::time_point until);

 private:
  bool poll_connections(bool only_ready);

  Context* const context_;
  ProgressScope* const outer_;
  bool is_driver_ = false;
  std::optional<PassiveWaiter> passive_waiter_;  // set if another thread drives
  bool ended_ = false;
};

}  // namespace backplane::gloo
