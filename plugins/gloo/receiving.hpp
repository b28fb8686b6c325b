// SPDX-License-Identifier: Apache-2.0
//
// The receiving side of a pair: the message that arrives, and cancelled receives, which gloo lacks. The peer may send
// as soon as a receive has been posted, so a cancelled receive becomes an orphan (cancelled.hpp). A message that has
// begun to arrive goes to a receive that already waits, whose own message then gets the orphan.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

#include "arrival.hpp"
#include "receive_queue.hpp"

namespace backplane::gloo {

class Receiving {
 public:
  Receiving(GlooPair& pair, Context& owner, Link& link, std::shared_ptr<const Health> health)
      : pair_(pair),
        owner_(owner),
        link_(link),
        queue_(pair, owner, std::move(health)),
        arrival_(pair, owner, link, queue_) {}

  // For the pair, under its lock.
  Arrival& arrival() { return arrival_; }

  // Cancels a receive posted here. The buffer may be destroyed afterwards. Returns false if its message has arrived, or
  // if it is not queued here. Ends the connection if there is no memory for the orphan.
  bool withdraw(const Buffer& buffer, uint64_t slot) noexcept;

  struct Adopted {
    bool posted = false;             // `buffer` replaced the orphan, or is too short for its message and complete
    std::unique_ptr<Buffer> orphan;  // has or receives the message; null: there was no orphan
  };
  // Serves a new receive from the oldest orphan of its slot.
  Adopted adopt(Buffer& buffer, uint64_t slot);
  // Gives back an orphan whose message has not been delivered, because the receive that took it was cancelled. A
  // receive that waits gets the message.
  void give_back(std::unique_ptr<Buffer> orphan, uint64_t slot) noexcept;
  // An orphan of this slot that has its message, or null.
  std::unique_ptr<Buffer> take_filled_orphan(uint64_t slot);
  bool has_filled_orphan(uint64_t slot);

 private:
  bool hand_on(Buffer& orphan, uint64_t slot);

  GlooPair& pair_;
  Context& owner_;
  Link& link_;
  ReceiveQueue queue_;
  Arrival arrival_;
};

}  // namespace backplane::gloo
