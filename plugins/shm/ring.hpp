// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a Channel. Each keeps its own cursors in private memory; what the other end writes only tells when
// there is room, or something to take, and is checked. Not thread-safe.
//
// The positions in the ring of bytes follow from the lengths alone, by the same rule on both sides: a piece begins at a
// multiple of 64 and does not wrap.
#pragma once

#include <cstring>

#include "brief_lock.hpp"
#include "futex.hpp"
#include "layout.hpp"

namespace backplane::shm {

// Where the next piece of `length` bytes begins, counted without end, and where the one after it.
struct Place {
  static Place after(uint64_t position, uint64_t length);
  uint64_t begin;
  uint64_t end;
};

class Outbox {
 public:
  Outbox() = default;
  Outbox(Channel& channel, std::atomic<uint32_t>& opened, bool lightly)
      : channel_(&channel), opened_(&opened), lightly_(lightly) {}

  // Tells the receiver that there is something to look at; to be called before anything else.
  void open() {
    if (!is_open_) opened_->store(1);
    is_open_ = true;
  }
  bool is_open() const { return is_open_; }

  // False: there is no room now; the receiver will ring when there is.
  bool put_inline(uint64_t tag, const void* data, uint64_t size);
  bool put_piece(Kind kind, uint64_t tag, uint64_t id, const void* data, uint64_t size);
  bool put_control(Kind kind, uint64_t tag, uint64_t id, uint64_t size, uint64_t place = 0);

  // Counts an eager message of `size` bytes if it may be sent unasked.
  bool take_credit(uint64_t size);
  // It was not sent after all.
  void return_credit(uint64_t size) { sent_ -= size + kOverhead; }
  // The program is about to have a buffer back that the receiver may be reading: it must not believe what it reads.
  void revoke() noexcept;

 private:
  bool has_head();
  bool has_bytes(const Place& place);
  bool ask_for_room();
  Head& head() { return channel_->heads[next_ % kHeads]; }
  void publish(Kind kind, uint64_t length);

  Channel* channel_ = nullptr;
  std::atomic<uint32_t>* opened_ = nullptr;
  bool lightly_ = false;
  bool is_open_ = false;
  uint32_t next_ = 0;
  uint32_t read_heads_ = 0;  // as last seen
  uint64_t position_ = 0;
  uint64_t read_bytes_ = 0;  // as last seen
  uint64_t sent_ = 0;        // eager bytes
  uint64_t taken_ = 0;       // of them, as last seen
  uint32_t revoked_ = 0;
};

// A head as it was when it was looked at, with the place of its bytes.
struct Arrival {
  Kind kind = Kind::kInline;
  uint64_t length = 0;  // bytes at `data`, at most kPiece
  uint64_t tag = 0;
  uint64_t id = 0;
  uint64_t size = 0;
  Loan loan{};
  const std::byte* data = nullptr;
};

class Inbox {
 public:
  Inbox() = default;
  Inbox(Channel& channel, const std::atomic<uint32_t>& opened, bool lightly)
      : channel_(&channel), opened_(&opened), lightly_(lightly) {}

  enum class Look { kNothing, kSomething, kNonsense };
  // What is next; its data stays until pop. Nonsense is also what exceeds the window.
  Look look(Arrival& arrival);
  void pop() {
    ++next_;
    position_ = after_;
    arrived_ += eager_;
  }
  // Tells the sender what was popped. True: it waits for room, ring its bell.
  bool release();
  // Bytes of the ring that were popped so far, with the gaps between them.
  uint64_t position() const { return position_; }
  // Gives back the credit of a message of `size` bytes.
  void give_credit(uint64_t size) { channel_->taken.store(taken_ += size + kOverhead, std::memory_order_release); }
  // After reading what was lent: had the sender taken back something by then, perhaps this?
  bool has_revoked(const Loan& loan) const noexcept;

 private:
  Channel* channel_ = nullptr;
  const std::atomic<uint32_t>* opened_ = nullptr;
  bool lightly_ = false;
  bool is_open_ = false;
  uint32_t next_ = 0;
  uint64_t position_ = 0;
  uint64_t after_ = 0;                        // the position when what was looked at is popped
  uint64_t eager_ = 0;                        // what it counts against the window
  uint64_t arrived_ = 0;                      // eager bytes, as the sender counts them
  uint64_t taken_ = 0;                        // of them
  std::array<std::byte, kHeadData> bytes_{};  // of an inline message
};

// One turn at reading an Inbox, with the lock: it tells the sender of room early, so that both copy at the same time,
// and ends although the sender goes on filling it. Nothing is left then that was there when it began, since no more
// fits into a channel than was read: what is left has come since, and its sender rings.
class Reading {
 public:
  static constexpr uint32_t kBatch = 16;                  // heads after which the sender is told of room
  static constexpr uint64_t kBatchBytes = kRingSize / 4;  // or bytes
  static constexpr uint32_t kMost = 4 * kHeads;           // heads after which it ends
  static_assert(kMost >= kHeads && kTurn > kRingSize);

  // Who holds `lock` reads.
  Reading(Inbox& in, const BriefLock& lock) : in_(in), lock_(lock) {}

  // kNothing: it is over.
  Inbox::Look next(Arrival& arrival) { return is_over() ? Inbox::Look::kNothing : in_.look(arrival); }
  // True: the sender waits for room, ring its bell.
  bool pop() {
    in_.pop();
    return (++heads_ % kBatch == 0 || in_.position() - released_ >= kBatchBytes) && release();
  }
  // To be called when it is over. True: as above.
  bool end() { return heads_ > 0 && in_.release(); }

 private:
  bool is_over() const {
    const uint64_t bytes = in_.position() - begin_;
    if (heads_ >= kMost || bytes >= kTurn) return true;
    // More than a ring: behind the last of its bytes there may have been heads that have none.
    return lock_.is_wanted() && (heads_ >= kHeads || bytes > kRingSize);
  }
  bool release() {
    released_ = in_.position();
    return in_.release();
  }

  Inbox& in_;
  const BriefLock& lock_;
  const uint64_t begin_ = in_.position();
  uint64_t released_ = begin_;  // the position that the sender knows
  uint32_t heads_ = 0;
};

}  // namespace backplane::shm
