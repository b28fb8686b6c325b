// SPDX-License-Identifier: Apache-2.0
//
// gloo's TCP pair (the connection to one peer), corrected where gloo 0.5 exits the process or hangs:
// - gloo takes the first process that connects for the peer; here it must know the rank's token (handshake.hpp);
// - gloo aborts on a message longer than its receive; here the receive fails and the payload is discarded;
// - gloo's thread spins if a receive's buffer has been destroyed; here the payload is discarded;
// - a write to a closed connection raises SIGPIPE and may deadlock with gloo's thread; here gloo's thread detects the
// end;
// - a connection that ends inside a payload leaves its waiter asleep; here the waiter is failed;
// - an exception on gloo's thread ends the process; here it ends the connection;
// - gloo's thread spins while a caller holds the pair's lock and keeps a preempted caller off its core until the next
// scheduler tick (4 ms); here it yields (see progress.hpp).
// It also cancels operations, which gloo cannot (cancelled.hpp). The peer may send as soon as a receive has been
// posted, so a cancelled receive becomes an orphan. A message that has begun to arrive goes to a receive that already
// waits, whose own message then gets the orphan.
#pragma once

#include <gloo/transport/tcp/pair.h>
#include <sys/epoll.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "cancelled.hpp"
#include "handshake.hpp"
#include "progress.hpp"
#include "transport.hpp"

namespace backplane::gloo {

// State used by gloo's thread. A base class, because gloo's constructor already passes the pair to that thread.
class PairState {
 protected:
  // A payload that no receive takes. It is discarded, or kept for a later receive.
  struct Spill {
    uint64_t slot = 0;
    uint64_t length = 0;
    uint64_t arrived = 0;
    bool is_kept = false;
    ArrivingBytes kept;
    WeakBuffer receiver;  // the orphan that gets a kept payload, if it still exists
  };

  PairState(Context& owner, std::shared_ptr<const Health> health, int peer)
      : owner_(owner),
        health_(health),
        admission_({owner.token(), peer}, owner.pending_connections()),
        orphans_(health),
        detached_(std::move(health)) {}
  ~PairState() = default;

  Context& owner_;
  const std::shared_ptr<const Health> health_;
  Clock::time_point connect_deadline_ = Clock::time_point::max();
  Hello hello_;  // sent if this rank connects
  // All guarded by m_.
  Admission admission_;
  const char* end_reason_ = nullptr;  // why this rank ended the connection
  bool was_connected_ = false;
  bool on_loop_ = false;               // inside handleReadWrite, on gloo's thread
  bool driven_ = false;                // taken by the driver; written only by the thread with the driver role
  bool has_ended_ = false;             // seen by the driver, not yet by gloo's thread
  std::string pending_notifications_;  // sent with the driver's next write
  std::unique_ptr<Spill> spill_;
  Orphans orphans_;
  DetachedSends detached_;
};

class Pair final : private PairState, public ::gloo::transport::tcp::Pair {
 public:
  Pair(Context& context, ::gloo::transport::tcp::Device* device, std::shared_ptr<const Health> health, int peer);
  ~Pair() override;

  // False if a process connected before the constructor could replace gloo's own accept. Such a pair must be destroyed.
  bool is_listening();
  // The token that the peer has published, and the deadline of connect(). Call before connect().
  void prepare_connect(const Token& token_of_peer, Clock::time_point deadline);

  void handleEvents(int events) override;
  // As in gloo, and attach the connection to the calling thread's ProgressScope.
  using Unbound = ::gloo::transport::UnboundBuffer;
  void send(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) override;
  void recv(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) override;

  Context& owner() const { return owner_; }
  // Takes the connection from gloo's thread. Returns its descriptor, -1 if it is not connected. This and the following
  // functions require the driver role.
  int take();
  bool is_driven() const { return driven_; }
  // Reads and writes without blocking, on the driver's thread. After kEnded the connection must be given back.
  enum class Progress { kIdle, kMoved, kBlocked, kEnded };  // kBlocked: more to write
  Progress advance();
  bool flush();  // true: nothing is left to write
  void give_back();

  bool is_open();
  // True once the connection was established, even if it has ended since.
  bool was_connected();
  // True once the peer's kernel has all data, or never will.
  bool is_flushed();
  // Initiates closing on gloo's thread. Any thread, does not block.
  void shut_down() noexcept;
  // Waits a short time for the close.
  void wait_closed();
  // Returns once a failure that has woken a waiter is also recorded in the context.
  void await_recorded() { const std::lock_guard lock(m_); }

  // Cancels a receive posted here. The buffer may be destroyed afterwards. Returns false if its message has arrived, or
  // if it is not queued here. Ends the connection if there is no memory for the orphan.
  bool withdraw_receive(const Buffer& buffer, uint64_t slot) noexcept;
  // Cancels a send: data not yet written are copied, up to 1 GiB, and sent when the peer requests them. Ends the
  // connection if they are more, or if there is no memory for the copy.
  void detach_send(const Buffer& buffer, uint64_t slot) noexcept;

  struct Adopted {
    bool posted = false;             // `buffer` replaced the orphan, or is too short for its message and complete
    std::unique_ptr<Buffer> orphan;  // has or receives the message; null: there was no orphan
  };
  // Serves a new receive from the oldest orphan of its slot.
  Adopted adopt(Buffer& buffer, uint64_t slot);
  // Gives back an orphan whose message has not been delivered, because the receive that took it was cancelled. A
  // receive that waits gets the message.
  void give_back_orphan(std::unique_ptr<Buffer> orphan, uint64_t slot) noexcept;
  // An orphan of this slot that has its message, or null.
  std::unique_ptr<Buffer> take_filled_orphan(uint64_t slot);
  bool has_filled_orphan(uint64_t slot);

 protected:
  void handleReadWrite(int events) override;
  bool write(::gloo::transport::tcp::Op& op) override;
  bool read() override;
  void changeState(state next) noexcept override;
  void waitUntilConnected(std::unique_lock<std::mutex>& lock, bool use_timeout) override;

 private:
  using Op = ::gloo::transport::tcp::Op;

  void admit_peer();
  void send_hello() noexcept;
  void end(const char* why) noexcept;
  void move(int events);
  bool read_preamble();
  void prepare_payload();
  bool read_payload();
  size_t receive(void* to, size_t bytes);
  void signal_end(const std::string& seen);
  bool write_queued();
  void expect_events(uint32_t events, int change = EPOLL_CTL_MOD);
  void ensure_registered();
  bool is_driver() const { return driven_ && ProgressScope::drives(owner_); }
  void put_oldest_first(uint64_t slot, std::deque<UnboundBufferOp>& receives);
  void spill_payload(WeakBuffer receiver, bool orphaned);
  bool read_spill();
  void finish_spill();
  void keep_for_later(Spill& arrived, Buffer& orphan);
  bool arrives_for(const Buffer& orphan) const;
  void queue_orphan(uint64_t slot, std::deque<UnboundBufferOp>& queue);
  std::optional<UnboundBufferOp> take_waiting(uint64_t slot);
  void discard_arriving(uint64_t slot, uint64_t arrived);
  bool redirect_arriving(uint64_t slot, const char* data, uint64_t arrived);
  bool hand_on(Buffer& orphan, uint64_t slot);
  void keep_arriving(const Buffer& buffer, uint64_t slot) noexcept;
  void detach_queued(const Buffer& buffer, uint64_t slot);
};

}  // namespace backplane::gloo
