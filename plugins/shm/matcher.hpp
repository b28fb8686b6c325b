// SPDX-License-Identifier: Apache-2.0
//
// Matches messages and receives by the rules of abi/op.h: a receive takes the oldest message with its source and tag, a
// message goes to the oldest matching receive. Every caller holds the lock of Messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "backplane/sdk/failure.hpp"
#include "layout.hpp"

namespace backplane::shm {

// A send or receive in flight. Owned by the waiter, but referred to until it is complete.
struct Operation {
  enum class Status : uint32_t { kPending, kDone, kFailed };
  enum class Stage { kNone, kQueued, kAnnounced, kLocal, kPosted, kIncoming };

  int32_t peer = -1;
  uint64_t tag = 0;
  std::byte* data = nullptr;
  uint64_t size = 0;            // bytes; for a receive the capacity
  bp_result* result = nullptr;  // may be null
  bool is_send = false;
  bool is_async = false;    // counted by the progress thread
  bool is_probed = false;   // receives a probed message: no other matches
  bool has_notice = false;  // a completion notice is registered

  std::atomic<Status> status = Status::kPending;  // written last
  std::optional<sdk::Failure> failure;

  // Used under the lock of Messages only.
  Stage stage = Stage::kNone;
  uint64_t order = 0;   // older receives have smaller numbers
  uint64_t id = 0;      // of the announcement
  int32_t source = -1;  // sender of a receive in stage kIncoming
  bool has_credit = false;

  bool is_pending() const { return status.load(std::memory_order_acquire) == Status::kPending; }
};

// An announced message that can be read in place.
struct RemoteBuffer {
  const std::byte* data = nullptr;  // null: not exposed
  Exposure exposure{};
};

// A message that no receive has taken yet. The handle of a probed one is its address.
struct Message {
  enum class State { kComplete, kAnnounced, kLocal, kIncoming };
  State state = State::kComplete;
  int32_t source = -1;
  uint64_t tag = 0;
  uint64_t size = 0;
  uint64_t id = 0;                        // kAnnounced, kIncoming
  RemoteBuffer remote = {};               // kAnnounced
  std::vector<std::byte> bytes;           // kComplete
  Operation* sender = nullptr;            // kLocal: the message is in its buffer
  std::optional<sdk::Failure> lost = {};  // probed: why it can no longer be received
};

class Matcher {
 public:
  // Removes and returns the oldest matching receive; null if there is none.
  Operation* take_receive(int32_t source, uint64_t tag);
  // Removes and returns the oldest matching message.
  std::optional<Message> take_message(int32_t source, uint64_t tag);
  // Reserves the oldest matching message for take_probed; null if there is none.
  const Message* probe(int32_t source, uint64_t tag);
  Message take_probed(const bp_message* probed);

  // Whether there are neither receives nor messages, except probed ones.
  bool is_empty() const { return posted_.empty() && messages_.empty(); }

  // Makes this receive the youngest. Call once, before post.
  void enter(Operation& receive) { receive.order = ++last_order_; }
  // Adds a receive at the position given by its order.
  void post(Operation& receive);
  void add(Message message) { messages_.push_back(std::move(message)); }
  void add_oldest(Message message) { messages_.push_front(std::move(message)); }

  void remove(const Operation& receive) { std::erase(posted_, &receive); }
  // Removes the messages for which `which` returns true. Probed ones are lost.
  void remove_messages(const std::function<bool(const Message&)>& which, const sdk::Failure& why);
  // Removes and returns the receives for which `which` returns true.
  std::vector<Operation*> take_receives(const std::function<bool(const Operation&)>& which);

 private:
  std::list<Message>::iterator find_message(int32_t source, uint64_t tag);

  std::list<Operation*> posted_;  // by order
  std::list<Message> messages_;   // oldest first
  std::list<Message> probed_;     // until they are received or dropped
  uint64_t last_order_ = 0;
};

}  // namespace backplane::shm
