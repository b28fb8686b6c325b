// SPDX-License-Identifier: Apache-2.0
//
// Where messages to this rank meet its receives, by the rules of abi/op.h: a receive takes the oldest message that
// matches its source and tag, a message goes to the oldest receive that matches. Not thread-safe.
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

// A send or a receive in flight. It belongs to whoever waits for it; the engine refers to it until it is over.
struct Operation {
  enum class Status : uint32_t { kPending, kDone, kFailed };
  enum class Where { kNowhere, kQueued, kAnnounced, kLocal, kPosted, kComing };

  int32_t peer = -1;
  uint64_t tag = 0;
  std::byte* data = nullptr;
  uint64_t size = 0;            // bytes; of a receive: room for so many
  bp_result* result = nullptr;  // may be null
  bool is_send = false;
  bool is_async = false;    // counts as in flight
  bool is_probed = false;   // a receive of a message that was probed: no other will do
  bool is_noticed = false;  // somebody is to be told when it is over

  std::atomic<Status> status = Status::kPending;  // written last
  std::optional<sdk::Failure> failure;

  // The engine's.
  Where where = Where::kNowhere;
  uint64_t order = 0;   // older receives have smaller numbers
  uint64_t id = 0;      // of the announcement
  int32_t source = -1;  // who sends the data of a receive that is kComing
  bool has_credit = false;

  bool is_pending() const { return status.load(std::memory_order_acquire) == Status::kPending; }
};

// The bytes of an announced message where its sender lends them.
struct Lent {
  const std::byte* data = nullptr;  // null: it does not
  Loan loan{};
};

// A message that no receive has taken yet.
struct Message {
  enum class Form { kWhole, kAnnounced, kLocal, kComing };
  Form form = Form::kWhole;
  int32_t source = -1;
  uint64_t tag = 0;
  uint64_t size = 0;
  uint64_t id = 0;               // kAnnounced, kComing
  Lent lent = {};                // kAnnounced
  std::vector<std::byte> bytes;  // kWhole
  Operation* sender = nullptr;   // kLocal: the message is in its buffer
};

class Matcher {
 public:
  // The oldest receive for this message, taken out; null if there is none.
  Operation* take_receive(int32_t source, uint64_t tag);
  // The oldest message for this receive, taken out.
  std::optional<Message> take_message(int32_t source, uint64_t tag);

  // Is there neither a receive nor a message?
  bool is_empty() const { return posted_.empty() && messages_.empty(); }

  // Adds a receive; among those that are there it stands where its order says.
  void post(Operation& receive);
  void add(Message message) { messages_.push_back(std::move(message)); }
  void add_oldest(Message message) { messages_.push_front(std::move(message)); }

  void remove(const Operation& receive) { std::erase(posted_, &receive); }
  void remove_messages(const std::function<bool(const Message&)>& which) { std::erase_if(messages_, which); }
  // Takes out the receives for which `which` answers true.
  std::vector<Operation*> take_receives(const std::function<bool(const Operation&)>& which);

 private:
  std::list<Operation*> posted_;  // by order
  std::list<Message> messages_;   // oldest first
};

}  // namespace backplane::shm
