// SPDX-License-Identifier: Apache-2.0
//
// send and recv. A message is one message of gloo, in the slot that is its tag; what a rank sends to itself stays in
// the process. Nothing here has a thread: operations are posted at once and gloo's thread gets on with them.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "context.hpp"
#include "drive.hpp"

namespace backplane::gloo {

// Tags are slots as they are. gloo's collectives use slots with 1 to 8 in the highest byte: tags of users are below
// 2^32, and those of the core have bit 63 set.
void check_tag(uint64_t tag);

// The messages of a rank to itself. They are copied when they are sent, so that sending before receiving is no
// deadlock.
class Loopback {
 public:
  explicit Loopback(int rank) : rank_(rank) {}

  // `transport` may be null (a group of one).
  void send(uint64_t tag, const void* data, uint64_t bytes, Context* transport);
  // Delivers the oldest message of that tag, or else makes the buffer wait for one and calls `post` (under the lock, so
  // that no message slips through between).
  template <typename Post>
  void receive(uint64_t tag, Buffer& buffer, bool from_any, Post post) {
    const std::lock_guard lock(mutex_);
    if (take(tag, buffer)) return;
    waiting_.push_back({tag, &buffer, from_any});
    post();
  }
  // Did it still wait?
  bool forget(const Buffer& buffer);

 private:
  struct Message {
    uint64_t tag;
    std::vector<char> bytes;
  };
  struct Waiting {
    uint64_t tag;
    Buffer* buffer;
    bool from_any;  // gloo may fill it, too
  };

  bool take(uint64_t tag, Buffer& buffer);

  const int rank_;
  std::mutex mutex_;
  std::list<Message> messages_;
  std::list<Waiting> waiting_;
};

// What the messages of one group share.
struct Lane {
  std::shared_ptr<Watch> watch;
  std::shared_ptr<Context> transport;  // null in a group of one
  int rank;
  int world_size;
  Loopback loopback;
  std::atomic<uint64_t> receives = 0;  // submitted so far
};

// A send or a recv in flight. Destroying it gives it up.
class Message {
 public:
  virtual ~Message() = default;
  // True once it is done, false if `until` came first. Throws sdk::Failure.
  virtual bool wait(Clock::time_point until) = 0;
  // Takes it back; afterwards only to be destroyed. False: too late, it has been done. Throws as wait does.
  virtual bool give_up() { return true; }
};

// Posts the operation. Null: it is done.
std::unique_ptr<Message> start_message(Lane& lane, const bp_op& op);

// The same as a Work; null: it is done.
std::unique_ptr<sdk::Work> message_work(Lane& lane, const bp_op& op);

}  // namespace backplane::gloo
