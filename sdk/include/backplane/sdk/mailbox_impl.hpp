// SPDX-License-Identifier: Apache-2.0
//
// The definitions of mailbox.hpp.
#pragma once

#include "mailbox.hpp"

namespace backplane::sdk {

namespace detail {
// The completion of an operation that fails at once.
inline std::shared_ptr<Completion> failed(const Failure& why) {
  auto completion = std::make_shared<Completion>();
  completion->fail(why);
  return completion;
}
}  // namespace detail

// Returns false if the message was withdrawn.
inline bool Mailbox::deliver_to(Message& message, Receive& receive) {
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
    if (message.size > 0) std::memmove(receive.data, message.data, message.size);
    receive.received->finish();
  }
  if (message.sent) message.sent->finish();
  if (message.on_taken) message.on_taken();
  return true;
}

inline std::optional<Mailbox::Receives::Position> Mailbox::receive_for(const Message& message) {
  const auto wanted = [&message](const Receive& r) { return r.source == BP_ANY_SOURCE || r.source == message.source; };
  auto found = receives_.first(message.tag, wanted);
  if (!matches_tag(BP_ANY_TAG, message.tag)) return found;
  const auto of_any_tag = receives_.first(BP_ANY_TAG, wanted);
  return of_any_tag && (!found || (*of_any_tag)->order < (*found)->order) ? of_any_tag : found;
}

inline std::optional<Mailbox::Messages::Position> Mailbox::message_for(int32_t source, uint64_t tag) {
  const auto wanted = [source](const Message& m) { return source == BP_ANY_SOURCE || source == m.source; };
  return tag == BP_ANY_TAG ? messages_.first_of_any_tag(wanted) : messages_.first(tag, wanted);
}

// Returns true if the message is finished: a receive was waiting for it, or it was withdrawn.
inline bool Mailbox::match(Message& message) {
  const auto receive = receive_for(message);
  if (!receive) return false;
  if (deliver_to(message, **receive)) receives_.erase(*receive);
  return true;
}

inline std::shared_ptr<Completion> Mailbox::put(int32_t source, uint64_t tag, const void* data, uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (closed_for_senders_) return detail::failed(*closed_for_senders_);
  if (const auto lost = lost_peers_.find(source); lost != lost_peers_.end()) return detail::failed(lost->second);
  Message message;
  message.source = source;
  message.tag = tag;
  message.data = data;
  message.size = size;
  if (match(message)) return nullptr;
  if (size <= eager_limit_ && eager_bytes_ + size <= capacity_) {
    const auto* bytes = static_cast<const std::byte*>(data);
    if (size > 0) message.copy.assign(bytes, bytes + size);
    message.data = message.copy.data();
    message.counted = true;
    eager_bytes_ += size;
  } else {
    message.sent = std::make_shared<Completion>();
  }
  std::shared_ptr<Completion> sent = message.sent;
  message.order = ++next_order_;
  messages_.insert(std::move(message));
  return sent;
}

inline void Mailbox::deliver(int32_t source, uint64_t tag, std::span<const std::byte> data,
                             std::function<void()> on_taken, const Keep& keep) {
  Message message;
  message.source = source;
  message.tag = tag;
  message.data = data.data();
  message.size = data.size();
  message.on_taken = std::move(on_taken);
  const std::lock_guard lock(mutex_);
  if (closed_ || match(message)) return;
  if (keep) {
    message.owner = keep();
  } else {
    message.copy.assign(data.begin(), data.end());
    message.data = message.copy.data();  // moving a vector does not change it
  }
  message.order = ++next_order_;
  messages_.insert(std::move(message));
}

inline void Mailbox::place_announced(int32_t source, uint64_t tag, uint64_t size, uint64_t id, Fetch fetch,
                                     int64_t order) {
  Message message;
  message.source = source;
  message.tag = tag;
  message.size = size;
  message.id = id;
  message.fetch = std::move(fetch);
  message.order = order;
  const std::lock_guard lock(mutex_);
  if (closed_ || match(message)) return;
  messages_.insert(std::move(message));
}

inline bool Mailbox::withdraw(int32_t source, uint64_t id) {
  const auto is_it = [source, id](const Message& m) { return m.fetch && m.source == source && m.id == id; };
  const std::lock_guard lock(mutex_);
  const auto held = std::find_if(held_.begin(), held_.end(), is_it);
  if (held != held_.end()) mark_lost(*held, taken_back_);
  return held != held_.end() || messages_.remove_if(is_it) > 0;
}

inline std::shared_ptr<Completion> Mailbox::take(Receive receive) {
  if (!receive.received) receive.received = std::make_shared<Completion>();
  std::shared_ptr<Completion> received = receive.received;
  receive.order = ++next_order_;
  post(std::move(receive));
  return received;
}

inline void Mailbox::post(Receive receive) {
  const std::lock_guard lock(mutex_);
  while (const auto message = message_for(receive.source, receive.tag)) {
    const bool has_it = deliver_to(**message, receive);
    if ((*message)->counted) eager_bytes_ -= (*message)->size;
    messages_.erase(*message);
    if (has_it) return;
  }
  if (const Failure* const why = reason_to_fail(receive.source)) {
    receive.received->fail(*why);
  } else {
    receives_.insert(std::move(receive));
  }
}

// Why a receive from this source fails if no message matches it, or null.
inline const Failure* Mailbox::reason_to_fail(int32_t source) const {
  if (closed_) return &*closed_;
  if (const auto lost = lost_peers_.find(source); lost != lost_peers_.end()) return &lost->second;
  return source == BP_ANY_SOURCE && all_lost_ ? &*all_lost_ : nullptr;
}

inline bp_message* Mailbox::probe(int32_t source, uint64_t tag, bp_result& result) {
  const std::lock_guard lock(mutex_);
  const auto message = message_for(source, tag);
  if (!message) {
    if (const Failure* const why = reason_to_fail(source)) throw Failure(*why);
    return nullptr;
  }
  result.source = (*message)->source;
  result.bytes = (*message)->size;
  result.tag = (*message)->tag;
  messages_.move_to(held_, *message);
  return reinterpret_cast<bp_message*>(&held_.back());
}

inline std::list<Mailbox::Message>::iterator Mailbox::find_held(const bp_message* message) {
  return std::find_if(held_.begin(), held_.end(),
                      [message](const Message& m) { return reinterpret_cast<const bp_message*>(&m) == message; });
}

// Fails a held message whose sender has reclaimed its buffer.
inline void Mailbox::mark_lost(Message& message, const Failure& why) {
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
  } else if (!deliver_to(*message, receive)) {
    received->fail(taken_back_);
  }
  if (message->counted) eager_bytes_ -= message->size;
  held_.erase(message);
  return received;
}

inline void Mailbox::drop(bp_message* which) noexcept {
  const std::lock_guard lock(mutex_);
  const auto message = find_held(which);
  guarded(nullptr, [&message] {  // on out-of-memory, the send waits until the group ends
    if (message->fetch) message->fetch(nullptr);
    return BP_OK;
  });
  if (message->sent) message->sent->finish();
  if (message->on_taken) message->on_taken();
  if (message->counted) eager_bytes_ -= message->size;
  held_.erase(message);
}

inline bool Mailbox::cancel(const Completion* which) noexcept {
  const std::lock_guard lock(mutex_);
  const auto held =
      std::find_if(held_.begin(), held_.end(), [which](const Message& m) { return m.sent && m.sent.get() == which; });
  if (held != held_.end()) {
    held->sent->fail(cancelled_);
    mark_lost(*held, taken_back_);
    return true;
  }
  const size_t messages = messages_.remove_if([this, which](const Message& m) {
    if (m.sent.get() != which || !m.sent) return false;
    m.sent->fail(cancelled_);
    return true;
  });
  const size_t receives = receives_.remove_if([this, which](const Receive& r) {
    if (r.received.get() != which) return false;
    r.received->fail(cancelled_);
    return true;
  });
  return messages + receives > 0;
}

inline void Mailbox::close(const Failure& why, const Failure& for_senders) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_.emplace(why);
  closed_for_senders_.emplace(for_senders);
  messages_.for_each([&for_senders](const Message& message) {
    if (message.sent) message.sent->fail(for_senders);
  });
  receives_.for_each([&why](const Receive& receive) { receive.received->fail(why); });
  for (Message& message : held_) {
    if (message.sent) message.sent->fail(for_senders);
    mark_lost(message, why);
    message.copy = {};
    message.owner.reset();
    message.counted = false;
  }
  messages_.clear();
  receives_.clear();
  eager_bytes_ = 0;
}

inline void Mailbox::drop_peer(int32_t rank, const Failure& why, size_t others,
                               const std::function<bool(uint64_t id)>& keep) {
  const std::lock_guard lock(mutex_);
  lost_peers_.emplace(rank, why);
  if (lost_peers_.size() >= others) all_lost_.emplace(why);
  messages_.remove_if([rank, &why, &keep](const Message& m) {
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
    mark_lost(message, why);
  }
  receives_.remove_if([this, rank, &why](const Receive& r) {
    if (r.source != rank && !(r.source == BP_ANY_SOURCE && all_lost_)) return false;
    r.received->fail(why);
    return true;
  });
}

}  // namespace backplane::sdk
