// SPDX-License-Identifier: Apache-2.0
#include "mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace backplane::inproc {
namespace {

bool matches(const Receive& receive, int32_t source, uint64_t tag) {
  return receive.tag == tag && (receive.source == BP_ANY_SOURCE || receive.source == source);
}

// A failed completion, for an operation that ends before it has waited.
std::shared_ptr<sdk::Completion> failed(const sdk::Failure& why) {
  auto completion = std::make_shared<sdk::Completion>();
  completion->fail(why);
  return completion;
}

}  // namespace

void Mailbox::deliver(const Message& message, const Receive& receive) {
  if (receive.result != nullptr) {
    receive.result->source = message.source;
    receive.result->bytes = message.size;
  }
  if (message.size > receive.capacity) {
    receive.received->fail(sdk::Failure(BP_INVALID,
                                        "a message of " + std::to_string(message.size) + " bytes from rank " +
                                            std::to_string(message.source) + " does not fit the receive buffer of " +
                                            std::to_string(receive.capacity) + " bytes",
                                        message.source));
  } else {
    if (message.size > 0) std::memcpy(receive.data, message.data, message.size);
    receive.received->finish();
  }
  if (message.sent) message.sent->finish();
}

std::shared_ptr<sdk::Completion> Mailbox::put(int32_t source, uint64_t tag, const void* data, uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (closed_for_senders_) return failed(*closed_for_senders_);
  if (const auto left = gone_.find(source); left != gone_.end()) return failed(left->second);
  Message message{source, tag, data, size, {}, nullptr};
  const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                    [source, tag](const Receive& r) { return matches(r, source, tag); });
  if (receive != receives_.end()) {
    deliver(message, *receive);
    receives_.erase(receive);
    return nullptr;
  }
  if (size <= kEagerLimit && eager_bytes_ + size <= kMailboxLimit) {
    const auto* bytes = static_cast<const std::byte*>(data);
    if (size > 0) message.copy.assign(bytes, bytes + size);
    message.data = message.copy.data();
    eager_bytes_ += size;
  } else {
    message.sent = std::make_shared<sdk::Completion>();
  }
  messages_.push_back(std::move(message));
  return messages_.back().sent;
}

std::shared_ptr<sdk::Completion> Mailbox::take(Receive receive) {
  const std::lock_guard lock(mutex_);
  receive.received = std::make_shared<sdk::Completion>();
  std::shared_ptr<sdk::Completion> received = receive.received;
  const auto message = std::find_if(messages_.begin(), messages_.end(),
                                    [&receive](const Message& m) { return matches(receive, m.source, m.tag); });
  if (message != messages_.end()) {
    deliver(*message, receive);
    if (!message->sent) eager_bytes_ -= message->size;
    messages_.erase(message);
  } else if (closed_) {
    received->fail(*closed_);
  } else if (const auto left = gone_.find(receive.source); left != gone_.end()) {
    received->fail(left->second);
  } else if (receive.source == BP_ANY_SOURCE && nobody_left_) {
    received->fail(*nobody_left_);
  } else {
    receives_.push_back(std::move(receive));
  }
  return received;
}

void Mailbox::cancel(const sdk::Completion* which) {
  const std::lock_guard lock(mutex_);
  const sdk::Failure why(BP_CANCELLED, "cancelled by this rank");
  std::erase_if(messages_, [which, &why](const Message& m) {
    if (m.sent.get() != which) return false;
    m.sent->fail(why);
    return true;
  });
  std::erase_if(receives_, [which, &why](const Receive& r) {
    if (r.received.get() != which) return false;
    r.received->fail(why);
    return true;
  });
}

void Mailbox::close(const sdk::Failure& why, const sdk::Failure& for_senders) {
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

void Mailbox::drop_peer(int32_t rank, const sdk::Failure& why, size_t others) {
  const std::lock_guard lock(mutex_);
  gone_.emplace(rank, why);
  if (gone_.size() == others) nobody_left_.emplace(why);
  std::erase_if(messages_, [rank, &why](const Message& m) {
    if (m.source != rank || !m.sent) return false;
    m.sent->fail(why);
    return true;
  });
  std::erase_if(receives_, [this, rank, &why](const Receive& r) {
    if (r.source != rank && !(r.source == BP_ANY_SOURCE && nobody_left_)) return false;
    r.received->fail(why);
    return true;
  });
}

}  // namespace backplane::inproc
