// SPDX-License-Identifier: Apache-2.0
//
// The message that arrives at a pair: its header, then its payload, which goes into the buffer of a receive, is kept
// for a later receive, or is discarded. gloo aborts on a message longer than its receive, and spins if the buffer of a
// receive has been destroyed; here such a payload is discarded. All functions require the pair's lock.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

#include "buffer.hpp"
#include "link.hpp"
#include "receive_queue.hpp"

namespace backplane::gloo {

class Arrival {
 public:
  Arrival(GlooPair& pair, Context& owner, Link& link, ReceiveQueue& queue)
      : pair_(pair), owner_(owner), link_(link), queue_(queue) {}

  // Reads on. kIncomplete: the rest has not come, or the connection has ended. kRead: all of a message that gloo must
  // handle. kDone: all of a message that gloo must not see.
  enum class Result { kIncomplete, kRead, kDone };
  Result read();

  // Whether the message arrives in this buffer (for this orphan, respectively).
  bool is_into(const Buffer& buffer) const;
  bool is_kept_for(const Buffer& orphan) const;
  // Whether the message that is kept is longer than `bytes`.
  bool is_longer_than(uint64_t bytes) const { return spill_->length > bytes; }

  // The buffer that the message arrives in is about to be destroyed: its bytes move to a receive that waits, or else to
  // an orphan, which is the oldest. Throws std::bad_alloc.
  void leave_buffer(const Buffer& buffer, uint64_t slot);
  // Moves the message that is kept for an orphan to a receive that waits. Returns false if there is none.
  bool redirect_kept(uint64_t slot) { return redirect(slot, spill_->kept.data(), spill_->arrived); }
  // Completes a receive that is too short for the message that is kept, and discards the rest.
  void refuse_kept(uint64_t slot, Buffer& receiver);

  // Fails the receive of the message.
  void fail(const std::exception_ptr& error) noexcept;

 private:
  // A payload that no receive takes.
  struct Spill {
    uint64_t slot = 0;
    uint64_t length = 0;
    uint64_t arrived = 0;
    bool is_kept = false;  // otherwise discarded
    ArrivingBytes kept;
    WeakBuffer receiver;  // the orphan that gets a kept payload, if it still exists
  };

  bool read_header();
  void begin_payload();
  void spill(WeakBuffer receiver, bool orphaned);
  bool read_payload();
  bool read_spill();
  void finish_spill();
  void keep(uint64_t slot, const char* data, uint64_t arrived);
  void keep_for_later(Spill& arrived, Buffer& orphan);
  void discard_rest(uint64_t slot, uint64_t arrived);
  bool redirect(uint64_t slot, const char* data, uint64_t arrived);

  GlooPair& pair_;
  Context& owner_;
  Link& link_;
  ReceiveQueue& queue_;
  std::unique_ptr<Spill> spill_;
};

}  // namespace backplane::gloo
