// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "pair.hpp"

namespace backplane::gloo {
namespace {

[[noreturn]] void throw_lost(const MessageContext& shared, int peer, const std::string& detail) {
  shared.health->failure.check();
  throw shared.transport->lost(peer, detail);
}

class Send final : public Message {
 public:
  Send(MessageContext& shared, const bp_op& op)
      : shared_(shared),
        peer_(op.peer),
        slot_(op.tag),
        buffer_(shared.transport, shared.health, op.input.data, op.input.count * bp_dtype_size(op.dtype),
                Buffer::Lengths::kUpToSize, Clock::time_point::max()) {
    try {
      buffer_.send(peer_, slot_, 0, buffer_.size);
    } catch (const ::gloo::Exception& e) {
      throw_lost(shared_, peer_, e.what());
    }
  }
  ~Send() override {
    if (!done_) shared_.transport->pair(peer_).sending().detach(buffer_, slot_);
  }

  bool wait(Clock::time_point until) override {
    const ProgressScope progress_scope(shared_.transport.get());
    ProgressScope::attach(shared_.transport->pair(peer_));
    try {
      done_ = buffer_.sent(until);
    } catch (const ::gloo::Exception& e) {
      throw_lost(shared_, peer_, e.what());
    }
    return done_;
  }

 private:
  MessageContext& shared_;
  const int peer_;
  const uint64_t slot_;
  Buffer buffer_;
  bool done_ = false;
};

class Receive final : public Message {
 public:
  Receive(MessageContext& shared, const bp_op& op)
      : shared_(shared),
        peer_(op.peer),
        slot_(op.tag),
        result_(op.result),
        posted_(op.peer == BP_ANY_SOURCE ? Clock::now() : Clock::time_point()),
        buffer_(shared.transport, shared.health, op.output.data, op.output.count * bp_dtype_size(op.dtype),
                Buffer::Lengths::kUpToSize, Clock::time_point::max()) {
    buffer_.set_order(shared_.receives.fetch_add(1));
    if (peer_ == BP_ANY_SOURCE) {
      passive_waiter_.emplace(shared_.transport.get());
      if (shared_.transport) shared_.transport->begin_reordering();
      shared_.loopback.receive(slot_, buffer_, true, [this] { post_any(); });
    } else if (peer_ == shared_.rank) {
      shared_.loopback.receive(slot_, buffer_, false, [] {});
    } else {
      post(shared_.transport->pair(peer_));
    }
  }
  ~Receive() override {
    shared_.loopback.forget(
        buffer_);  // a receive from any source may be queued there although another source matched it
    if (!done_ && !withdrawn_) withdraw();
    if (shared_.transport && (peer_ == BP_ANY_SOURCE || buffer_.is_displaced())) shared_.transport->end_reordering();
  }

  // A message that arrived since the last test must not be lost.
  bool try_cancel() override {
    withdrawn_ = withdraw();
    return withdrawn_ || !wait_slice(Clock::time_point::min());
  }

  bool wait(Clock::time_point until) override {
    if (peer_ == shared_.rank || !shared_.transport) return wait_slice(until);
    const ProgressScope progress_scope(peer_ == BP_ANY_SOURCE ? nullptr : shared_.transport.get());
    if (peer_ != BP_ANY_SOURCE) ProgressScope::attach(shared_.transport->pair(peer_));
    // Such a receive is not completed by the end of a connection, so the wait checks for that.
    for (;;) {
      const Clock::time_point slice = std::min(until, Clock::now() + kCheckInterval);
      if (wait_slice(slice)) return true;
      if (peer_ != BP_ANY_SOURCE && buffer_.is_displaced() && shared_.transport->pair(peer_).connection().has_ended() &&
          !buffer_.has_received()) {
        throw_lost(shared_, peer_, "it had not sent its message");
      }
      if (peer_ == BP_ANY_SOURCE && shared_.transport->all_lost()) {
        if (wait_slice(Clock::time_point::min())) return true;  // messages that arrived before the last peer left
        throw_lost(shared_, shared_.transport->first_lost(), "no other rank is left");
      }
      if (peer_ == BP_ANY_SOURCE && Clock::now() >= posted_ + kCheckInterval) shared_.transport->keep_a_connection();
      if (slice == until) return false;
    }
  }

 private:
  bool wait_slice(Clock::time_point until) {
    try {
      if (orphan_) {
        if (!orphan_->received(until)) return false;
        buffer_.deliver(orphan_->kept(), orphan_->length(), orphan_->source());
        orphan_.reset();
      }
      done_ = buffer_.received(until);
    } catch (const ::gloo::Exception& e) {
      throw_lost(shared_, peer_ == BP_ANY_SOURCE ? shared_.transport->first_lost() : peer_, e.what());
    }
    if (done_) report();
    return done_;
  }

  void post(Pair& pair) {
    Receiving::Adopted adopted = pair.receiving().adopt(buffer_, slot_);
    orphan_ = std::move(adopted.orphan);
    if (orphan_ || adopted.posted) return;
    try {
      buffer_.recv(peer_, slot_, 0, buffer_.size);
    } catch (const ::gloo::Exception& e) {
      throw_lost(shared_, peer_, e.what());
    }
  }

  void post_any() {
    if (!shared_.transport) return;
    do {
      orphan_ = take_filled_orphan();
      if (orphan_ || !post_to_peers()) return;
      // A message that reached an orphan between the test and the post has found no receive.
    } while (has_filled_orphan() && shared_.transport->withdraw_any_source(buffer_, slot_));
  }

  std::unique_ptr<Buffer> take_filled_orphan() {
    for (int rank = 0; rank < shared_.world_size; ++rank) {
      if (rank == shared_.rank) continue;
      if (auto orphan = shared_.transport->pair(rank).receiving().take_filled_orphan(slot_)) return orphan;
    }
    return nullptr;
  }

  bool has_filled_orphan() {
    for (int rank = 0; rank < shared_.world_size; ++rank) {
      if (rank != shared_.rank && shared_.transport->pair(rank).receiving().has_filled_orphan(slot_)) return true;
    }
    return false;
  }

  // Returns false if all others have left; wait() reports that.
  bool post_to_peers() {
    // gloo fails as a whole if a peer that has announced a message is gone: retry without it.
    for (;;) {
      std::vector<int> others = open_peers();
      if (others.empty()) return false;
      try {
        buffer_.recv(std::move(others), slot_, 0, buffer_.size);
        return true;
      } catch (const ::gloo::Exception&) {
      }
    }
  }

  std::vector<int> open_peers() {
    std::vector<int> peers;
    for (int rank = 0; rank < shared_.world_size; ++rank) {
      if (rank != shared_.rank && !shared_.transport->pair(rank).connection().has_ended()) peers.push_back(rank);
    }
    return peers;
  }

  // Returns false if the message has arrived in the buffer.
  bool withdraw() {
    const bool waited_here = shared_.loopback.forget(buffer_);
    if (orphan_) {
      const int source = peer_ == BP_ANY_SOURCE ? orphan_->source() : peer_;
      shared_.transport->pair(source).receiving().give_back(std::move(orphan_), slot_);
      return true;
    }
    if (!shared_.transport || peer_ == shared_.rank) return waited_here;
    if (peer_ != BP_ANY_SOURCE) {
      Pair& pair = shared_.transport->pair(peer_);
      if (pair.receiving().withdraw(buffer_, slot_)) return true;
      if (!buffer_.is_displaced()) return false;
      if (shared_.transport->withdraw_any_source(buffer_, slot_)) return true;
      return pair.receiving().withdraw(buffer_,
                                       slot_);  // a message announced meanwhile has moved the receive back to this pair
    }
    if (shared_.transport->withdraw_any_source(buffer_, slot_)) return true;
    for (int rank = 0; rank < shared_.world_size; ++rank) {
      if (rank != shared_.rank && shared_.transport->pair(rank).receiving().withdraw(buffer_, slot_)) return true;
    }
    return false;
  }

  void report() {
    const uint64_t length = buffer_.length();
    const int source = buffer_.source();
    if (result_ != nullptr) {
      result_->source = source;
      result_->bytes = length;
      result_->tag = slot_;
    }
    if (length <= buffer_.size) return;
    throw sdk::Failure(BP_INVALID,
                       "a message of " + std::to_string(length) + " bytes from rank " + std::to_string(source) +
                           " does not fit the receive buffer of " + std::to_string(buffer_.size) + " bytes",
                       source);
  }

  MessageContext& shared_;
  const int peer_;
  const uint64_t slot_;
  bp_result* const result_;
  const Clock::time_point posted_;               // of a receive from any source
  std::optional<PassiveWaiter> passive_waiter_;  // of a receive from any source
  Buffer buffer_;
  std::unique_ptr<Buffer> orphan_;  // receives the message instead of buffer_
  bool done_ = false;
  bool withdrawn_ = false;
};

// The message is destroyed before the work becomes terminal: nothing touches the user's memory afterwards.
class MessageWork final : public sdk::Work {
 public:
  MessageWork(std::unique_ptr<Message> message, std::unique_ptr<PassiveWaiter> passive_waiter,
              std::shared_ptr<const Health> health)
      : passive_waiter_(std::move(passive_waiter)), message_(std::move(message)), health_(std::move(health)) {}

  bool wait(int64_t timeout_ns) override {
    if (failure_) throw sdk::Failure(*failure_);
    if (!message_) return true;
    try {
      if (!wait_until(base::Deadline::after(timeout_ns).at())) return false;
    } catch (const sdk::Failure& e) {
      failure_.emplace(e);
    }
    message_.reset();
    passive_waiter_.reset();
    if (failure_) throw sdk::Failure(*failure_);
    return true;
  }

  void cancel() noexcept override { cancelled_.store(true); }

 private:
  // Cancel may come from another thread during the wait.
  bool wait_until(Clock::time_point deadline) {
    for (;;) {
      const Clock::time_point slice = std::min(deadline, Clock::now() + kCheckInterval);
      if (message_->wait(slice)) return true;
      health_->failure.check();
      if (cancelled_) {
        if (!message_->try_cancel()) return true;
        throw sdk::Failure(BP_CANCELLED, "cancelled by this rank");
      }
      if (slice == deadline) return false;
    }
  }

  std::unique_ptr<PassiveWaiter> passive_waiter_;  // the operation progresses without a waiting thread
  std::unique_ptr<Message> message_;
  const std::shared_ptr<const Health> health_;
  std::optional<sdk::Failure> failure_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

void check_tag(uint64_t tag) {
  const uint64_t prefix = tag >> 56;
  if (prefix == 0 || prefix >= 0x80) return;
  throw sdk::Failure(BP_INVALID, "tag " + std::to_string(tag) + " is reserved for gloo; use a tag below 2^32");
}

void Loopback::send(uint64_t tag, const void* data, uint64_t bytes, Context* transport) {
  const std::lock_guard lock(mutex_);
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    if (waiting->tag != tag) {
      ++waiting;
      continue;
    }
    Buffer& buffer = *waiting->buffer;
    const bool free = !waiting->from_any || transport == nullptr || transport->withdraw_any_source(buffer, tag);
    waiting = waiting_.erase(waiting);
    if (!free) continue;  // another rank's message has matched it first
    buffer.deliver(data, bytes, rank_);
    return;
  }
  const char* first = static_cast<const char*>(data);
  messages_.push_back({tag, bytes == 0 ? std::vector<char>() : std::vector<char>(first, first + bytes)});
}

bool Loopback::take(uint64_t tag, Buffer& buffer) {
  const auto found =
      std::find_if(messages_.begin(), messages_.end(), [tag](const Message& message) { return message.tag == tag; });
  if (found == messages_.end()) return false;
  buffer.deliver(found->bytes.data(), found->bytes.size(), rank_);
  messages_.erase(found);
  return true;
}

bool Loopback::forget(const Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  return waiting_.remove_if([&buffer](const Waiting& waiting) { return waiting.buffer == &buffer; }) > 0;
}

std::unique_ptr<Message> start_message(MessageContext& shared, const bp_op& op) {
  check_tag(op.tag);
  if (op.kind == BP_RECV) return std::make_unique<Receive>(shared, op);
  if (op.peer != shared.rank) return std::make_unique<Send>(shared, op);
  shared.loopback.send(op.tag, op.input.data, op.input.count * bp_dtype_size(op.dtype), shared.transport.get());
  return nullptr;
}

std::unique_ptr<sdk::Work> start_async_message(MessageContext& shared, const bp_op& op) {
  auto passive_waiter = std::make_unique<PassiveWaiter>(shared.transport.get());
  std::unique_ptr<Message> message = start_message(shared, op);
  if (!message) return nullptr;
  return std::make_unique<MessageWork>(std::move(message), std::move(passive_waiter), shared.health);
}

}  // namespace backplane::gloo
