// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "pair.hpp"

namespace backplane::gloo {
namespace {

[[noreturn]] void throw_lost(const Lane& lane, int peer, const char* what) {
  lane.watch->fault.check();
  throw sdk::Failure(BP_PEER_LOST,
                     "the connection to rank " + std::to_string(peer) + " has ended (" + std::string(what) +
                         "): its process has gone or has left the group",
                     peer);
}

class Send final : public Message {
 public:
  Send(Lane& lane, const bp_op& op)
      : lane_(lane),
        peer_(op.peer),
        slot_(op.tag),
        buffer_(lane.transport, lane.watch, op.input.data, op.input.count * bp_dtype_size(op.dtype),
                Buffer::Lengths::kUpToSize, Clock::time_point::max()) {
    try {
      buffer_.send(peer_, slot_, 0, buffer_.size);
    } catch (const ::gloo::Exception& e) {
      throw_lost(lane_, peer_, e.what());
    }
  }
  ~Send() override {
    if (!done_) lane_.transport->pair(peer_).detach_send(buffer_, slot_);
  }

  bool wait(Clock::time_point until) override {
    const Drive drive(lane_.transport.get());
    Drive::join(lane_.transport->pair(peer_));
    try {
      done_ = buffer_.sent(until);
    } catch (const ::gloo::Exception& e) {
      throw_lost(lane_, peer_, e.what());
    }
    return done_;
  }

 private:
  Lane& lane_;
  const int peer_;
  const uint64_t slot_;
  Buffer buffer_;
  bool done_ = false;
};

class Receive final : public Message {
 public:
  Receive(Lane& lane, const bp_op& op)
      : lane_(lane),
        peer_(op.peer),
        slot_(op.tag),
        result_(op.result),
        buffer_(lane.transport, lane.watch, op.output.data, op.output.count * bp_dtype_size(op.dtype),
                Buffer::Lengths::kUpToSize, Clock::time_point::max()) {
    buffer_.set_age(lane_.receives.fetch_add(1));
    if (peer_ == BP_ANY_SOURCE) {
      bystander_.emplace(lane_.transport.get());
      if (lane_.transport) lane_.transport->expect_disorder();
      lane_.loopback.receive(slot_, buffer_, true, [this] { post_any(); });
    } else if (peer_ == lane_.rank) {
      lane_.loopback.receive(slot_, buffer_, false, [] {});
    } else {
      post(lane_.transport->pair(peer_));
    }
  }
  ~Receive() override {
    lane_.loopback.forget(buffer_);  // where one from any source waits, too, though its message came from elsewhere
    if (!done_ && !withdrawn_) withdraw();
    if (lane_.transport && (peer_ == BP_ANY_SOURCE || buffer_.is_displaced())) lane_.transport->expect_order();
  }

  // What has come since the last look must not get lost.
  bool give_up() override {
    withdrawn_ = withdraw();
    return withdrawn_ || !wait_slice(Clock::time_point::min());
  }

  bool wait(Clock::time_point until) override {
    if (peer_ == lane_.rank || !lane_.transport) return wait_slice(until);
    const Drive drive(peer_ == BP_ANY_SOURCE ? nullptr : lane_.transport.get());
    if (peer_ != BP_ANY_SOURCE) Drive::join(lane_.transport->pair(peer_));
    // No connection tells a receive from any source, or one that such a receive has displaced, that it has ended.
    for (;;) {
      const Clock::time_point slice = std::min(until, Clock::now() + kWatchInterval);
      if (wait_slice(slice)) return true;
      if (peer_ != BP_ANY_SOURCE && buffer_.is_displaced() && !lane_.transport->pair(peer_).is_open() &&
          !buffer_.has_received()) {
        throw_lost(lane_, peer_, "its message was still to be sent");
      }
      if (peer_ == BP_ANY_SOURCE && lane_.transport->all_lost()) {
        if (wait_slice(Clock::time_point::min())) return true;  // what came before the last one left
        throw_lost(lane_, lane_.transport->first_lost(), "and nobody else is left");
      }
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
      throw_lost(lane_, peer_ == BP_ANY_SOURCE ? lane_.transport->first_lost() : peer_, e.what());
    }
    if (done_) report();
    return done_;
  }

  void post(Pair& pair) {
    Pair::Adopted adopted = pair.adopt(buffer_, slot_);
    orphan_ = std::move(adopted.orphan);
    if (orphan_ || adopted.posted) return;
    try {
      buffer_.recv(peer_, slot_, 0, buffer_.size);
    } catch (const ::gloo::Exception& e) {
      throw_lost(lane_, peer_, e.what());
    }
  }

  void post_any() {
    if (!lane_.transport) return;
    do {
      orphan_ = take_filled_orphan();
      if (orphan_ || !post_to_peers()) return;
      // A message that came to an orphan between the look and the post has found nobody waiting.
    } while (has_filled_orphan() && lane_.transport->withdraw_any(buffer_, slot_));
  }

  std::unique_ptr<Buffer> take_filled_orphan() {
    for (int rank = 0; rank < lane_.world_size; ++rank) {
      if (rank == lane_.rank) continue;
      if (auto orphan = lane_.transport->pair(rank).take_filled_orphan(slot_)) return orphan;
    }
    return nullptr;
  }

  bool has_filled_orphan() {
    for (int rank = 0; rank < lane_.world_size; ++rank) {
      if (rank != lane_.rank && lane_.transport->pair(rank).has_filled_orphan(slot_)) return true;
    }
    return false;
  }

  // False: nobody is there; wait() tells.
  bool post_to_peers() {
    // gloo refuses as a whole when a rank that has announced a message is gone: then again without it.
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
    for (int rank = 0; rank < lane_.world_size; ++rank) {
      if (rank != lane_.rank && lane_.transport->pair(rank).is_open()) peers.push_back(rank);
    }
    return peers;
  }

  // False: the message has come, or is coming, into the buffer.
  bool withdraw() {
    const bool waited_here = lane_.loopback.forget(buffer_);
    if (!lane_.transport || peer_ == lane_.rank) return waited_here;
    if (peer_ != BP_ANY_SOURCE) {
      Pair& pair = lane_.transport->pair(peer_);
      if (pair.withdraw_receive(buffer_, slot_)) return true;
      if (!buffer_.is_displaced()) return false;
      if (lane_.transport->withdraw_any(buffer_, slot_)) return true;
      return pair.withdraw_receive(buffer_, slot_);  // a message that was announced just now has taken it back there
    }
    if (lane_.transport->withdraw_any(buffer_, slot_)) return true;
    for (int rank = 0; rank < lane_.world_size; ++rank) {
      if (rank != lane_.rank && lane_.transport->pair(rank).withdraw_receive(buffer_, slot_)) return true;
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

  Lane& lane_;
  const int peer_;
  const uint64_t slot_;
  bp_result* const result_;
  std::optional<Bystander> bystander_;  // of one from any source
  Buffer buffer_;
  std::unique_ptr<Buffer> orphan_;  // has, or is getting, the message in place of buffer_
  bool done_ = false;
  bool withdrawn_ = false;
};

// The destructor of the message runs before the work is terminal, so that nothing touches the user's memory later.
class MessageWork final : public sdk::Work {
 public:
  MessageWork(std::unique_ptr<Message> message, std::unique_ptr<Bystander> bystander,
              std::shared_ptr<const Watch> watch)
      : bystander_(std::move(bystander)), message_(std::move(message)), watch_(std::move(watch)) {}

  bool wait(int64_t timeout_ns) override {
    if (failure_) throw sdk::Failure(*failure_);
    if (!message_) return true;
    try {
      if (!wait_until(deadline_after(timeout_ns))) return false;
    } catch (const sdk::Failure& e) {
      failure_.emplace(e);
    }
    message_.reset();
    bystander_.reset();
    if (failure_) throw sdk::Failure(*failure_);
    return true;
  }

  void cancel() noexcept override { cancelled_.store(true); }

 private:
  // A cancel can come from another thread while this one waits.
  bool wait_until(Clock::time_point deadline) {
    for (;;) {
      const Clock::time_point slice = std::min(deadline, Clock::now() + kWatchInterval);
      if (message_->wait(slice)) return true;
      watch_->fault.check();
      if (cancelled_) {
        if (!message_->give_up()) return true;
        throw sdk::Failure(BP_CANCELLED, "cancelled by this rank");
      }
      if (slice == deadline) return false;
    }
  }

  std::unique_ptr<Bystander> bystander_;  // it gets on without being waited for
  std::unique_ptr<Message> message_;
  const std::shared_ptr<const Watch> watch_;
  std::optional<sdk::Failure> failure_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

void check_tag(uint64_t tag) {
  const uint64_t prefix = tag >> 56;
  if (prefix == 0 || prefix >= 0x80) return;
  throw sdk::Failure(BP_INVALID, "tag " + std::to_string(tag) + " is none of a user (below 2^32) and none of the core");
}

void Loopback::send(uint64_t tag, const void* data, uint64_t bytes, Context* transport) {
  const std::lock_guard lock(mutex_);
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    if (waiting->tag != tag) {
      ++waiting;
      continue;
    }
    Buffer& buffer = *waiting->buffer;
    const bool free = !waiting->from_any || transport == nullptr || transport->withdraw_any(buffer, tag);
    waiting = waiting_.erase(waiting);
    if (!free) continue;  // a message of another rank was faster
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

std::unique_ptr<Message> start_message(Lane& lane, const bp_op& op) {
  check_tag(op.tag);
  if (op.kind == BP_RECV) return std::make_unique<Receive>(lane, op);
  if (op.peer != lane.rank) return std::make_unique<Send>(lane, op);
  lane.loopback.send(op.tag, op.input.data, op.input.count * bp_dtype_size(op.dtype), lane.transport.get());
  return nullptr;
}

std::unique_ptr<sdk::Work> message_work(Lane& lane, const bp_op& op) {
  auto bystander = std::make_unique<Bystander>(lane.transport.get());
  std::unique_ptr<Message> message = start_message(lane, op);
  if (!message) return nullptr;
  return std::make_unique<MessageWork>(std::move(message), std::move(bystander), lane.watch);
}

}  // namespace backplane::gloo
