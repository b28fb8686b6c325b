// SPDX-License-Identifier: Apache-2.0
//
// The sender's and receiver's ends of a Channel. Each keeps its cursors in private memory. Values written by the other
// end only signal room or data, and are checked. Not thread-safe.
//
// Positions in the ring of bytes follow from the lengths alone, by the same rule on both sides: a piece begins at a
// multiple of 64 and does not wrap.
#pragma once

#include <algorithm>
#include <cstring>

#include "futex.hpp"
#include "layout.hpp"
#include "spin_lock.hpp"

namespace backplane::shm {

// The begin of the next piece of `length` bytes, and its end, as counters that never wrap.
struct RingSpan {
  static RingSpan after(uint64_t position, uint64_t length, uint64_t ring_size);
  uint64_t begin;
  uint64_t end;
};

class Outbox {
 public:
  Outbox() = default;
  Outbox(Channel& channel, const Ring& ring, std::atomic<uint32_t>& opened, bool membarrier)
      : channel_(&channel), ring_(ring), opened_(&opened), membarrier_(membarrier) {}

  // Commits the pages that this end writes: the heads, and for messages the ring. Announces the channel to the
  // receiver. Call before anything is put. Throws BP_RESOURCE.
  void prepare(bool for_messages);
  void open() {
    if (!is_open_) opened_->store(1);
    is_open_ = true;
  }
  // The number of heads put so far, which wraps.
  uint32_t heads() const { return next_; }

  // Return false if there is no room. The receiver rings when there is.
  bool put_inline(uint64_t tag, const void* data, uint64_t size);
  bool put_piece(Kind kind, uint64_t tag, uint64_t id, const void* data, uint64_t size);
  bool put_control(Kind kind, uint64_t tag, uint64_t id, uint64_t size, uint64_t location = 0);

  // Reserves window space for an eager message of at most kMaxEager bytes. Returns false if it must be announced.
  bool take_credit(uint64_t size);
  // The message was not sent.
  void return_credit(uint64_t size) { sent_ -= size + kOverhead; }
  // Invalidates exposed buffers before the program gets one back that the receiver may be reading.
  void revoke() noexcept;

 private:
  bool has_head();
  bool has_bytes(const RingSpan& span);
  bool ask_for_room();
  Head& head() { return channel_->heads[next_ % kHeads]; }
  void publish(Kind kind, uint64_t length);

  Channel* channel_ = nullptr;
  Ring ring_;
  std::atomic<uint32_t>* opened_ = nullptr;
  bool membarrier_ = false;
  bool is_open_ = false;
  bool has_ring_ = false;
  uint32_t next_ = 0;
  uint32_t heads_read_ = 0;  // as last seen
  uint64_t position_ = 0;
  uint64_t bytes_read_ = 0;  // as last seen
  uint64_t sent_ = 0;        // eager bytes
  uint64_t taken_ = 0;       // of them, as last seen
  uint32_t revocations_ = 0;
};

// A copy of a head, with the address of its bytes.
struct Arrival {
  Kind kind = Kind::kInline;
  uint64_t length = 0;  // bytes at `data`, at most kPiece
  uint64_t tag = 0;
  uint64_t id = 0;
  uint64_t size = 0;
  Exposure exposure{};
  const std::byte* data = nullptr;
};

class Inbox {
 public:
  Inbox() = default;
  Inbox(Channel& channel, const Ring& ring, const std::atomic<uint32_t>& opened, bool membarrier)
      : channel_(&channel), ring_(ring), opened_(&opened), membarrier_(membarrier) {}

  enum class Peek { kNone, kMessage, kMalformed };
  // Returns the next head. Its data stay valid until pop. kMalformed also if the window is exceeded.
  Peek peek(Arrival& arrival);
  void pop() {
    ++next_;
    position_ = after_;
    arrived_ += eager_;
  }
  // Publishes what was popped. Returns true if the sender waits for room and must be woken.
  bool release();
  // Bytes popped so far, including gaps.
  uint64_t position() const { return position_; }
  uint64_t ring_size() const { return ring_.size; }
  // Returns the window space of a message of `size` bytes.
  void return_credits(uint64_t size) { channel_->taken.store(taken_ += size + kOverhead, std::memory_order_release); }
  // Call after reading an exposed buffer: whether the sender has revoked any exposure since.
  bool has_revoked(const Exposure& exposure) const noexcept;

 private:
  Channel* channel_ = nullptr;
  Ring ring_;
  const std::atomic<uint32_t>* opened_ = nullptr;
  bool membarrier_ = false;
  bool is_open_ = false;
  uint32_t next_ = 0;
  uint64_t position_ = 0;
  uint64_t after_ = 0;                        // the position after the peeked head
  uint64_t eager_ = 0;                        // window space of the peeked head
  uint64_t arrived_ = 0;                      // eager bytes, as the sender counts them
  uint64_t taken_ = 0;                        // of them
  std::array<std::byte, kHeadData> bytes_{};  // of an inline message
};

// One batch of reads from an Inbox under the lock. Reports room early, so that both sides copy concurrently. Ends even
// if the sender keeps sending: by then more has been read than fits into the channel, so everything that was in it at
// the beginning has been read. The sender rings for later heads.
class ReadBatch {
 public:
  static constexpr uint32_t kBatch = 16;         // heads after which room is reported, or a quarter of the ring
  static constexpr uint32_t kMost = 4 * kHeads;  // heads after which it ends
  static_assert(kMost >= kHeads);

  // The caller holds `lock`.
  ReadBatch(Inbox& in, const SpinLock& lock) : in_(in), lock_(lock) {}

  // kNone: the batch is over.
  Inbox::Peek next(Arrival& arrival) { return has_exited() ? Inbox::Peek::kNone : in_.peek(arrival); }
  // Returns true if the sender waits for room and must be woken.
  bool pop() {
    in_.pop();
    return (++heads_ % kBatch == 0 || in_.position() - released_ >= in_.ring_size() / 4) && release();
  }
  // Call when the batch is over. Returns true as above.
  bool end() { return heads_ > 0 && in_.release(); }

 private:
  bool has_exited() const {
    const uint64_t bytes = in_.position() - begin_;
    if (heads_ >= kMost || bytes >= std::max(kMaxBatch, 2 * in_.ring_size())) return true;
    // More than a ring, since heads without bytes may have followed.
    return lock_.is_contended() && (heads_ >= kHeads || bytes > in_.ring_size());
  }
  bool release() {
    released_ = in_.position();
    return in_.release();
  }

  Inbox& in_;
  const SpinLock& lock_;
  const uint64_t begin_ = in_.position();
  uint64_t released_ = begin_;  // the position known to the sender
  uint32_t heads_ = 0;
};

}  // namespace backplane::shm
