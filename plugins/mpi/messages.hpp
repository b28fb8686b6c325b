// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives. A receive takes its message by a matched probe, which tells the size before memory is needed: a
// message longer than the buffer is consumed whole. The receives of a group are kept in the order of their submission,
// and a message that was probed goes to the oldest one that matches, whichever thread probed it.
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>

#include "operation.hpp"

namespace backplane::mpi {

// With two communicators, 19 bits of MPI's tags are enough. Some libraries have no more than 20.
constexpr uint32_t kTagBits = 20;
constexpr int kMaxTag = (1 << (kTagBits - 1)) - 1;

class Receives {
 public:
  // A receive that waits for its message, or for the data of it.
  struct Posted {
    int peer = kAnySource;
    int tag = kAnyTag;
    bool internal = false;
    std::byte* data = nullptr;        // of the program, if MPI may write there; NULL: a copy
    uint64_t capacity = 0;            // bytes
    Envelope envelope;                // valid once matched, like those below
    const std::byte* copy = nullptr;  // the message, unless it is in `data`
    PendingRequests pending{1};
    std::optional<sdk::Failure> failure;  // of the probe or the match
    std::atomic<bool> matched = false;    // set last
  };

  Receives(Api& api, Comm user, Comm internal, std::shared_ptr<sdk::BlockPool> pool);

  void post(const std::shared_ptr<Posted>& posted);
  // Removes a receive that has no message yet. False: it has one.
  bool withdraw(const std::shared_ptr<Posted>& posted) noexcept;
  // Starts to receive the messages that have arrived. Returns at once if another thread does so.
  void progress();

 private:
  using List = std::list<std::shared_ptr<Posted>>;
  struct Queue {
    Comm comm;
    List waiting;
  };

  // Finds one message for a receive of the queue, or fails one. Whether another pass may find more. With mutex_ held,
  // like the others.
  bool match_one(Queue& queue);
  // The same for this receive, before which one of any tag waits.
  bool match_after_any_tag(Queue& queue, const Posted& posted);
  static List::iterator find_match(Queue& queue, const Envelope& envelope);  // the oldest receive
  std::shared_ptr<Posted> take(Queue& queue, List::iterator which);
  void fail(Queue& queue, List::iterator which, const sdk::Failure& failure);
  void deliver(Queue& queue, const Envelope& envelope, Message message);

  Api& api_;
  const std::shared_ptr<sdk::BlockPool> pool_;
  std::atomic<size_t> count_ = 0;
  std::mutex mutex_;
  std::array<Queue, 2> queues_;  // user, internal
};

// Starts a send or receive. NULL: it was synchronous, and is complete.
std::unique_ptr<sdk::Work> send(GroupState& group, const bp_op& op);
std::unique_ptr<sdk::Work> receive(GroupState& group, const bp_op& op);

}  // namespace backplane::mpi
