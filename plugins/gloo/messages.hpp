// SPDX-License-Identifier: Apache-2.0
//
// send and recv. A message is one gloo message without a header; its tag is gloo's slot. Messages to self stay in the
// process. Operations are posted at once and progress without a thread of their own.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "progress.hpp"
#include "transport.hpp"

namespace backplane::gloo {

// Throws BP_INVALID if the tag is one of gloo's slots. gloo's collectives use slots with 1 to 8 in the highest byte.
// User tags are below 2^32, tags of the core have bit 63 set.
void check_tag(uint64_t tag);

// Messages of a rank to itself. They are copied when sent, so that sending before receiving cannot deadlock.
class Loopback {
 public:
  explicit Loopback(int rank) : rank_(rank) {}

  // `transport` may be null (a group of one).
  void send(uint64_t tag, const void* data, uint64_t bytes, Context* transport);
  // Delivers the oldest message with this tag. If there is none, queues the buffer and calls `post` under the lock, so
  // that no message is missed.
  template <typename Post>
  void receive(uint64_t tag, Buffer& buffer, bool from_any, Post post) {
    const std::lock_guard lock(mutex_);
    if (take(tag, buffer)) return;
    waiting_.push_back({tag, &buffer, from_any});
    post();
  }
  // Returns whether the buffer was still queued.
  bool forget(const Buffer& buffer);

 private:
  struct Message {
    uint64_t tag;
    std::vector<char> bytes;
  };
  struct Waiting {
    uint64_t tag;
    Buffer* buffer;
    bool from_any;  // gloo may also complete it
  };

  bool take(uint64_t tag, Buffer& buffer);

  const int rank_;
  std::mutex mutex_;
  std::list<Message> messages_;
  std::list<Waiting> waiting_;
};

// State shared by the messages of one group.
struct MessageContext {
  std::shared_ptr<Health> health;
  std::shared_ptr<Context> transport;  // null in a group of one
  int rank;
  int world_size;
  Loopback loopback;
  std::atomic<uint64_t> receives = 0;  // receives submitted so far
};

// A send or recv in flight. Destroying it cancels it.
class Message {
 public:
  virtual ~Message() = default;
  // Returns true once done, false at `until`. Throws sdk::Failure.
  virtual bool wait(Clock::time_point until) = 0;
  // Cancels the operation, which then must only be destroyed. Returns false if it is already done. Throws like wait.
  virtual bool try_cancel() { return true; }
};

// Posts the operation. Returns null if it is done.
std::unique_ptr<Message> start_message(MessageContext& shared, const bp_op& op);

// Like start_message, as a Work.
std::unique_ptr<sdk::Work> start_async_message(MessageContext& shared, const bp_op& op);

}  // namespace backplane::gloo
