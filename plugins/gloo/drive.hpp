// SPDX-License-Identifier: Apache-2.0
//
// The thread that waits for an operation moves its bytes. gloo leaves that to a thread of its own: two switches between
// threads for each message, and if the scheduler has both on one core, up to a tick (4 ms) until the other one runs.
// While threads of the program drive, gloo's thread sleeps over the connections that they have taken.
#pragma once

#include <gloo/transport/tcp/device.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "backplane/sdk/spin_policy.hpp"
#include "fault.hpp"

namespace backplane::gloo {

class Context;
class Pair;

// What a group's drivers hand on to each other: the connections that they have taken. They are gloo's thread's again as
// soon as somebody waits who does not drive, or else when nobody has driven for a while.
class Helm final : private ::gloo::transport::tcp::Handler {
 public:
  // Throws sdk::Failure(BP_RESOURCE) if there is no descriptor left.
  explicit Helm(::gloo::transport::tcp::Device& device);
  // Nobody drives any more.
  ~Helm() override;
  Helm(const Helm&) = delete;
  Helm& operator=(const Helm&) = delete;

  // While a bystander is there, connections belong to gloo's thread unless somebody drives at this moment.
  void add_bystander();
  void remove_bystander() { bystanders_.fetch_sub(1); }

 private:
  friend class Drive;

  bool take() { return !taken_.exchange(true); }
  void leave();
  void release();  // by whoever has taken it
  void handleEvents(int events) override;
  void look_for_idleness();
  void set_timer(bool on);

  ::gloo::transport::tcp::Device& device_;
  int timer_ = -1;
  std::atomic<bool> taken_ = false;
  std::atomic<int> bystanders_ = 0;
  std::atomic<uint64_t> drives_ = 0;  // so far
  uint64_t drives_seen_ = 0;          // by the timer, on gloo's thread
  std::atomic<uint32_t> visits_ = 0;  // of gloo's thread
  // Of whoever has taken it.
  sdk::SpinPolicy spin_policy_{std::chrono::microseconds(100)};
  bool timer_on_ = false;
  std::vector<Pair*> pairs_;
  std::vector<pollfd> polled_;  // of the same connections
};

// Somebody waits who does not drive, for as long as this lives.
class Bystander {
 public:
  // `context` may be null (a group of one), else it outlives this.
  explicit Bystander(Context* context);
  ~Bystander();
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

 private:
  Helm* const helm_;
};

// A thread's claim to drive the connections of a group that it uses, for as long as this object lives. One thread of a
// group at a time has it, and serves the operations of all threads on the connections that are taken. The others are
// bystanders: they sleep until their buffers are told, by that thread or by gloo's.
class Drive {
 public:
  // `context` may be null (a group of one).
  explicit Drive(Context* context);
  ~Drive();
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;

  // What the calling thread drives, or null if it drives no connection.
  static Drive* here();
  // Whether the calling thread drives the connections of this group.
  static bool is_of(const Context& context);
  // The calling thread is about to use this connection: takes it, if the thread drives its group.
  static void join(Pair& pair);

  // Sends what is held back, and waits until something has moved or `until` has come. May return early. A connection
  // that has ended is gloo's thread's affair: then this drives nothing any more.
  void advance(Clock::time_point until);

 private:
  bool pass(bool only_ready);

  Context* const context_;
  Drive* const outer_;
  bool leads_ = false;
  std::optional<Bystander> bystander_;  // if another thread leads
  bool ended_ = false;
};

}  // namespace backplane::gloo
