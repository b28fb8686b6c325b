// SPDX-License-Identifier: Apache-2.0
//
// The definitions of mailbox.hpp.
#pragma once

#include "mailbox.hpp"

namespace backplane::sdk {

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
    receive.result->tag = message.tag;
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
  Message message{source, tag, data, size, {}, nullptr, {}, {}, 0, false, {}};
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
  Message message{source, tag, nullptr, bytes.size(), std::move(bytes), nullptr, std::move(on_taken), {}, 0, false, {}};
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
  const auto is_it = [source, id](const Message& m) { return m.fetch && m.source == source && m.id == id; };
  const std::lock_guard lock(mutex_);
  const auto held = std::find_if(held_.begin(), held_.end(), is_it);
  if (held != held_.end()) lose(*held, taken_back_);
  return held != held_.end() || std::erase_if(messages_, is_it) > 0;
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
  if (const Failure* const why = reason_to_fail(receive.source)) {
    receive.received->fail(*why);
  } else {
    const auto at = std::find_if(receives_.rbegin(), receives_.rend(),
                                 [&receive](const Receive& r) { return r.order < receive.order; });
    receives_.insert(at.base(), std::move(receive));
  }
}

// Why a receive from there would fail if no message is here for it, or null.
inline const Failure* Mailbox::reason_to_fail(int32_t source) const {
  if (closed_) return &*closed_;
  if (const auto left = gone_.find(source); left != gone_.end()) return &left->second;
  return source == BP_ANY_SOURCE && nobody_left_ ? &*nobody_left_ : nullptr;
}

inline bp_message* Mailbox::probe(int32_t source, uint64_t tag, bp_result& result) {
  Receive receive;
  receive.source = source;
  receive.tag = tag;
  const std::lock_guard lock(mutex_);
  const auto message =
      std::find_if(messages_.begin(), messages_.end(), [&receive](const Message& m) { return matches(receive, m); });
  if (message == messages_.end()) {
    if (const Failure* const why = reason_to_fail(source)) throw Failure(*why);
    return nullptr;
  }
  result.source = message->source;
  result.bytes = message->size;
  result.tag = message->tag;
  held_.splice(held_.end(), messages_, message);
  return reinterpret_cast<bp_message*>(&*message);
}

inline std::list<Mailbox::Message>::iterator Mailbox::find_held(const bp_message* message) {
  return std::find_if(held_.begin(), held_.end(),
                      [message](const Message& m) { return reinterpret_cast<const bp_message*>(&m) == message; });
}

// One that is held, and whose data its sender does not lend any more.
inline void Mailbox::lose(Message& message, const Failure& why) {
  message.lost.emplace(why);
  message.sent.reset();
  message.fetch = {};
}

inline std::shared_ptr<Completion> Mailbox::take(bp_message* which, Receive receive) {
  try {
    if (!receive.received) receive.received = std::make_shared<Completion>();
  } catch (const std::bad_alloc&) {
    drop(which);
    throw;
  }
  std::shared_ptr<Completion> received = receive.received;
  const std::lock_guard lock(mutex_);
  const auto message = find_held(which);
  receive.source = message->source;
  receive.tag = message->tag;
  receive.order = ++next_order_;
  receive.is_probed = true;
  if (message->lost) {
    received->fail(*message->lost);
  } else if (!hand_over(*message, receive)) {
    received->fail(taken_back_);
  }
  if (message->counted) eager_bytes_ -= message->size;
  held_.erase(message);
  return received;
}

inline void Mailbox::drop(bp_message* which) noexcept {
  const std::lock_guard lock(mutex_);
  const auto message = find_held(which);
  guarded(nullptr, [&message] {  // without memory to tell its sender, that waits until the group ends
    if (message->fetch) message->fetch(nullptr);
    return BP_OK;
  });
  if (message->sent) message->sent->finish();
  if (message->on_taken) message->on_taken();
  if (message->counted) eager_bytes_ -= message->size;
  held_.erase(message);
}

inline void Mailbox::forget(std::list<Message>::iterator message) {
  if (message->counted) eager_bytes_ -= message->size;
  messages_.erase(message);
}

inline bool Mailbox::cancel(const Completion* which) noexcept {
  const std::lock_guard lock(mutex_);
  const size_t before = messages_.size() + receives_.size();
  const auto held =
      std::find_if(held_.begin(), held_.end(), [which](const Message& m) { return m.sent && m.sent.get() == which; });
  if (held != held_.end()) {
    held->sent->fail(cancelled_);
    lose(*held, taken_back_);
    return true;
  }
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
  for (Message& message : held_) {
    if (message.sent) message.sent->fail(for_senders);
    lose(message, why);
    message.copy = {};
    message.counted = false;
  }
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
  for (Message& message : held_) {
    const bool stays =
        message.source != rank || message.lost || (message.fetch ? keep && keep(message.id) : !message.sent);
    if (stays) continue;
    if (message.sent) message.sent->fail(why);
    lose(message, why);
  }
  std::erase_if(receives_, [this, rank, &why](const Receive& r) {
    if (r.source != rank && !(r.source == BP_ANY_SOURCE && nobody_left_)) return false;
    r.received->fail(why);
    return true;
  });
}

}  // namespace backplane::sdk
