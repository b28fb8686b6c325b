// SPDX-License-Identifier: Apache-2.0
//
// Where the messages to one rank meet its receives, by the rules of abi/op.h: a receive takes the oldest message that
// matches its source and tag, a message goes to the oldest receive that matches, all 64 bits of a tag count, and a
// message that is too long ends its receive with BP_INVALID.
//
// Messages come in three ways:
//   put       from a sender in this process. A small one is copied and its send is done at once (eager); a large one,
//             or one that finds the mailbox full, waits in the sender's buffer for its receive (rendezvous), so that a
//             flood of unexpected messages takes bounded memory.
//   deliver   from a wire, whole, in memory that the mailbox now owns.
//   announce  from a wire, as a promise: its data is fetched when a receive has taken it.
//
// All functions may be called from any thread and none blocks. Callbacks run under the mailbox's lock: they must not
// call the mailbox, nor wait for somebody who does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "completion.hpp"

namespace backplane::sdk {

// A receive on its way to a message.
struct Receive {
  int32_t source = BP_ANY_SOURCE;
  uint64_t tag = 0;
  void* data = nullptr;
  uint64_t capacity = 0;                 // bytes
  bp_result* result = nullptr;           // may be null
  std::shared_ptr<Completion> received;  // settled when the message is in `data`; made by take if it is null
  uint64_t order = 0;                    // set by take: older receives have smaller numbers
};

class Mailbox {
 public:
  static constexpr uint64_t kEagerLimit = UINT64_C(8) * 1024;       // bytes of one message
  static constexpr uint64_t kCapacity = UINT64_C(4) * 1024 * 1024;  // bytes of all eager messages that wait here
  using Bytes = std::vector<std::byte>;
  // Told once that the receive is to be filled with the announced message; or, with nullptr, that nobody wants it (its
  // receive was too small for it). `result` is already written. False: the message does not exist any more, and the
  // receive goes on as if it never had.
  using Fetch = std::function<bool(Receive* receive)>;

  // A message from `source` in a buffer of this process. Returns what the sender has to wait for before it may reuse
  // the buffer; null if the message is delivered or copied already.
  std::shared_ptr<Completion> put(int32_t source, uint64_t tag, const void* data, uint64_t size);

  // A whole message from a wire; never refused. `on_taken` (may be empty) is told when a receive has it, so that
  // whoever counts the bytes that wait here can let more come.
  void deliver(int32_t source, uint64_t tag, Bytes bytes, std::function<void()> on_taken = {});

  // A message of `size` bytes that can be fetched. `id` is for withdraw. Never refused.
  void announce(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch) {
    place({source, tag, nullptr, size, {}, nullptr, {}, std::move(fetch), id}, false);
  }
  // The same for a message that a receive had taken and gave back: it is the oldest again.
  void announce_again(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch) {
    place({source, tag, nullptr, size, {}, nullptr, {}, std::move(fetch), id}, true);
  }
  // Takes an announced message back. False if it is not here (any more).
  bool withdraw(int32_t source, uint64_t id);

  // Posts a receive. Its completion, which this returns, settles when a message has been copied into receive.data.
  std::shared_ptr<Completion> take(Receive receive);
  // Posts a receive again whose message was withdrawn; it keeps its place among the others.
  void restore(Receive receive) { post(std::move(receive)); }

  // Fails the send or receive of this completion with BP_CANCELLED if it is still waiting here. False: it is not. Needs
  // no memory.
  bool cancel(const Completion* which) noexcept;

  // Fails everything that waits here and everything that comes: receives with `why`, what others put with
  // `for_senders`. Only the first call counts.
  void close(const Failure& why, const Failure& for_senders);

  // Fails the messages of one rank that wait here for their receive, and the receives that name it, now and later. What
  // it had delivered, or put eagerly, can still be received, and so can announced messages for which `keep` (may be
  // empty) answers true to their id. `others`: how many ranks there are beside this mailbox's own.
  void drop_peer(int32_t rank, const Failure& why, size_t others, const std::function<bool(uint64_t id)>& keep = {});

 private:
  // One that no receive has taken yet. Either `sent` or `fetch` is set, or the bytes are in `copy`.
  struct Message {
    int32_t source = -1;
    uint64_t tag = 0;
    const void* data = nullptr;  // put by rendezvous: the sender's buffer; else copy.data()
    uint64_t size = 0;           // bytes
    Bytes copy;
    std::shared_ptr<Completion> sent;  // rendezvous: settled when the receive has it
    std::function<void()> on_taken;
    Fetch fetch;
    uint64_t id = 0;
    bool counted = false;  // in eager_bytes_
  };

  static bool matches(const Receive& receive, const Message& message) {
    return receive.tag == message.tag && (receive.source == BP_ANY_SOURCE || receive.source == message.source);
  }
  static bool hand_over(Message& message, Receive& receive);
  std::list<Receive>::iterator receive_for(const Message& message) {
    return std::find_if(receives_.begin(), receives_.end(),
                        [&message](const Receive& r) { return matches(r, message); });
  }
  bool meet(Message& message);
  void place(Message message, bool oldest);
  void post(Receive receive);
  void forget(std::list<Message>::iterator message);

  const Failure cancelled_{BP_CANCELLED, "cancelled by this rank"};
  std::mutex mutex_;
  std::list<Message> messages_;  // oldest first
  std::list<Receive> receives_;  // by `order`
  uint64_t eager_bytes_ = 0;
  uint64_t next_order_ = 0;
  std::map<int32_t, Failure> gone_;  // ranks that have left
  std::optional<Failure> nobody_left_;
  std::optional<Failure> closed_;  // set by close: for receives
  std::optional<Failure> closed_for_senders_;
};

namespace detail {
// A failed completion, for an operation that ends before it has waited.
inline std::shared_ptr<Completion> failed(const Failure& why) {
  auto completion = std::make_shared<Completion>();
  completion->fail(why);
  return completion;
}
}  // namespace detail

// False: there was nothing left to hand over.
inline bool Mailbox::hand_over(Message& message, Receive& receive) {
  const bool fits = message.size <= receive.capacity;
  if (receive.result != nullptr) {
    receive.result->source = message.source;
    receive.result->bytes = message.size;
  }
  if (message.fetch && !message.fetch(fits ? &receive : nullptr)) return false;
  if (!fits) {
    receive.received->fail(Failure(BP_INVALID,
                                   "a message of " + std::to_string(message.size) + " bytes from rank " +
                                       std::to_string(message.source) + " does not fit the receive buffer of " +
                                       std::to_string(receive.capacity) + " bytes",
                                   message.source));
  } else if (!message.fetch) {
    if (message.size > 0) std::memcpy(receive.data, message.data, message.size);
    receive.received->finish();
  }
  if (message.sent) message.sent->finish();
  if (message.on_taken) message.on_taken();
  return true;
}

// True if nothing is left to do for this message: a receive was waiting for it and has it now.
inline bool Mailbox::meet(Message& message) {
  const auto receive = receive_for(message);
  if (receive == receives_.end()) return false;
  if (hand_over(message, *receive)) receives_.erase(receive);
  return true;
}

inline std::shared_ptr<Completion> Mailbox::put(int32_t source, uint64_t tag, const void* data, uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (closed_for_senders_) return detail::failed(*closed_for_senders_);
  if (const auto left = gone_.find(source); left != gone_.end()) return detail::failed(left->second);
  Message message{source, tag, data, size, {}, nullptr, {}, {}, 0, false};
  if (meet(message)) return nullptr;
  if (size <= kEagerLimit && eager_bytes_ + size <= kCapacity) {
    const auto* bytes = static_cast<const std::byte*>(data);
    if (size > 0) message.copy.assign(bytes, bytes + size);
    message.data = message.copy.data();
    message.counted = true;
    eager_bytes_ += size;
  } else {
    message.sent = std::make_shared<Completion>();
  }
  messages_.push_back(std::move(message));
  return messages_.back().sent;
}

inline void Mailbox::deliver(int32_t source, uint64_t tag, Bytes bytes, std::function<void()> on_taken) {
  Message message{source, tag, nullptr, bytes.size(), std::move(bytes), nullptr, std::move(on_taken), {}, 0, false};
  message.data = message.copy.data();  // which moving a vector does not change
  place(std::move(message), false);
}

inline void Mailbox::place(Message message, bool oldest) {
  const std::lock_guard lock(mutex_);
  if (closed_ || meet(message)) return;
  if (oldest) {
    messages_.push_front(std::move(message));
  } else {
    messages_.push_back(std::move(message));
  }
}

inline bool Mailbox::withdraw(int32_t source, uint64_t id) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(messages_,
                       [source, id](const Message& m) { return m.fetch && m.source == source && m.id == id; }) > 0;
}

inline std::shared_ptr<Completion> Mailbox::take(Receive receive) {
  if (!receive.received) receive.received = std::make_shared<Completion>();
  std::shared_ptr<Completion> received = receive.received;
  {
    const std::lock_guard lock(mutex_);
    receive.order = ++next_order_;
  }
  post(std::move(receive));
  return received;
}

inline void Mailbox::post(Receive receive) {
  const std::lock_guard lock(mutex_);
  for (auto message = messages_.begin(); message != messages_.end();) {
    const auto candidate = message++;
    if (!matches(receive, *candidate)) continue;
    const bool has_it = hand_over(*candidate, receive);
    forget(candidate);
    if (has_it) return;
  }
  if (closed_) {
    receive.received->fail(*closed_);
  } else if (const auto left = gone_.find(receive.source); left != gone_.end()) {
    receive.received->fail(left->second);
  } else if (receive.source == BP_ANY_SOURCE && nobody_left_) {
    receive.received->fail(*nobody_left_);
  } else {
    const auto at = std::find_if(receives_.rbegin(), receives_.rend(),
                                 [&receive](const Receive& r) { return r.order < receive.order; });
    receives_.insert(at.base(), std::move(receive));
  }
}

inline void Mailbox::forget(std::list<Message>::iterator message) {
  if (message->counted) eager_bytes_ -= message->size;
  messages_.erase(message);
}

inline bool Mailbox::cancel(const Completion* which) noexcept {
  const std::lock_guard lock(mutex_);
  const size_t before = messages_.size() + receives_.size();
  std::erase_if(messages_, [this, which](const Message& m) {
    if (m.sent.get() != which || !m.sent) return false;
    m.sent->fail(cancelled_);
    return true;
  });
  std::erase_if(receives_, [this, which](const Receive& r) {
    if (r.received.get() != which) return false;
    r.received->fail(cancelled_);
    return true;
  });
  return messages_.size() + receives_.size() != before;
}

inline void Mailbox::close(const Failure& why, const Failure& for_senders) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_.emplace(why);
  closed_for_senders_.emplace(for_senders);
  for (const Message& message : messages_) {
    if (message.sent) message.sent->fail(for_senders);
  }
  for (const Receive& receive : receives_) receive.received->fail(why);
  messages_.clear();
  receives_.clear();
  eager_bytes_ = 0;
}

inline void Mailbox::drop_peer(int32_t rank, const Failure& why, size_t others,
                               const std::function<bool(uint64_t id)>& keep) {
  const std::lock_guard lock(mutex_);
  gone_.emplace(rank, why);
  if (gone_.size() >= others) nobody_left_.emplace(why);
  std::erase_if(messages_, [rank, &why, &keep](const Message& m) {
    if (m.source != rank || (!m.sent && !m.fetch)) return false;
    if (m.fetch) return !keep || !keep(m.id);
    m.sent->fail(why);
    return true;
  });
  std::erase_if(receives_, [this, rank, &why](const Receive& r) {
    if (r.source != rank && !(r.source == BP_ANY_SOURCE && nobody_left_)) return false;
    r.received->fail(why);
    return true;
  });
}

}  // namespace backplane::sdk
