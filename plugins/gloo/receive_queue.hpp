// SPDX-License-Identifier: Apache-2.0
//
// The receives of a pair whose messages have been requested, and the orphans among them (cancelled.hpp). All functions
// require the pair's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "cancelled.hpp"
#include "gloo_pair.hpp"

namespace backplane::gloo {

class Context;

class ReceiveQueue {
 public:
  using Posted = GlooPair::Posted;

  ReceiveQueue(GlooPair& pair, Context& owner, std::shared_ptr<const Health> health)
      : pair_(pair), owner_(owner), orphans_(std::move(health)) {}

  Orphans& orphans() { return orphans_; }

  // Removes the receive that the next message of the slot is for, which may be an orphan. Throws ::gloo::IoException if
  // no message was requested.
  Posted take_next(uint64_t slot);
  // Removes the oldest receive that is no orphan, whose message an orphan gets instead.
  std::optional<Posted> take_waiting(uint64_t slot);
  // Removes a receive and adds an orphan for its message. Returns false if it is not queued. Throws std::bad_alloc
  // after the removal.
  bool orphan(const Buffer& buffer, uint64_t slot);
  // Puts a receive in the place of an orphan. Returns false if the orphan is not queued.
  bool replace(const Buffer& orphan, Buffer& buffer, uint64_t slot);

 private:
  void put_oldest_first(uint64_t slot, std::deque<Posted>& receives);
  void add_orphan(uint64_t slot, std::deque<Posted>& queue);

  GlooPair& pair_;
  Context& owner_;
  Orphans orphans_;
};

}  // namespace backplane::gloo
