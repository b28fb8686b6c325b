// SPDX-License-Identifier: Apache-2.0
//
// gloo's TCP pair (the connection to one peer), mended where gloo 0.5 ends the process or hangs:
//  - a message longer than its receive ends the process in gloo; here it is read into a spill and reported;
//  - a receive whose buffer is gone makes gloo's thread spin; here the message is read into a spill and dropped;
//  - a write to a closed connection raises SIGPIPE and can deadlock against gloo's thread; here gloo's thread finds
//  out;
//  - a connection that ends in the middle of a payload leaves its waiter asleep; here it is told;
//  - an exception on gloo's thread ends the process; here it ends the connection;
//  - gloo's thread spins while a caller holds the pair's lock, and keeps a caller that was preempted off its core until
//  the scheduler's next tick (4 ms); here it yields, and mostly does not come to it: see drive.hpp.
// It also takes back operations, which gloo cannot. The peer has been told of a posted receive and may send at any
// moment, so a receive that is given up becomes an orphan: it keeps the message for the next receive of that slot.
#pragma once

#include <gloo/transport/tcp/pair.h>
#include <sys/epoll.h>

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "context.hpp"
#include "drive.hpp"

namespace backplane::gloo {

// What gloo's thread uses of a pair. A base class of its own, because gloo's constructor already hands the pair to that
// thread.
class PairState {
 protected:
  using Pending = ::gloo::transport::tcp::UnboundBuffer;

  // Where a payload goes that has no buffer, or too small a one.
  struct Spill {
    uint64_t slot = 0;
    uint64_t length = 0;
    bool orphaned = false;  // the receive was given up: the message is kept for the next one
    std::unique_ptr<char[]> bytes;
    std::unique_ptr<Buffer> target;
    Held receiver;  // told when all has arrived, if it is still there
  };

  // A send that was given up, with its own copy of the payload.
  struct Detached {
    std::unique_ptr<char[]> bytes;
    std::unique_ptr<Buffer> buffer;
  };

  PairState(Context& owner, std::shared_ptr<const Watch> watch) : owner_(owner), watch_(std::move(watch)) {}
  ~PairState() = default;

  Context& owner_;
  const std::shared_ptr<const Watch> watch_;
  Clock::time_point connect_deadline_ = Clock::time_point::max();
  // All under m_.
  bool was_connected_ = false;
  bool on_loop_ = false;  // inside handleReadWrite, on gloo's thread
  bool driven_ = false;   // taken by the driver; changed only by whoever has the helm, too
  bool ended_ = false;    // seen by the driver; gloo's thread has yet to find out
  std::string held_;      // notifications that go out with the driver's next write
  std::unique_ptr<Spill> spill_;
  std::unordered_map<uint64_t, std::deque<std::unique_ptr<Buffer>>> orphans_;
  std::vector<std::unique_ptr<Buffer>> spent_;  // orphans whose message went elsewhere, until it is safe to free them
  std::list<Detached> detached_;
};

class Pair final : private PairState, public ::gloo::transport::tcp::Pair {
 public:
  Pair(Context& context, ::gloo::transport::tcp::Device* device, std::shared_ptr<const Watch> watch, int peer);
  ~Pair() override;

  // Until when connect() waits. Before connect().
  void set_connect_deadline(Clock::time_point deadline) { connect_deadline_ = deadline; }

  void handleEvents(int events) override;
  // Of gloo's, and on the way the connection is taken by the drive of the calling thread.
  using Unbound = ::gloo::transport::UnboundBuffer;
  void send(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) override;
  void recv(Unbound* buffer, uint64_t slot, size_t offset, size_t bytes) override;

  Context& owner() const { return owner_; }
  // From here on gloo's thread leaves the connection to the group's driver. Returns its descriptor, -1 if it is not
  // connected. This and the next ones are called by whoever has taken the helm.
  int take();
  bool is_driven() const { return driven_; }
  // On the driver's thread: reads and writes what can be without waiting. After kEnded it is to be given back.
  enum class Progress { kIdle, kMoved, kBlocked, kEnded };  // kBlocked: there is more to write
  Progress advance();
  bool flush();  // true: all that was to be written
  void give_back();

  bool is_open();
  // True from the moment of the connection on, also when it has ended since.
  bool was_connected();
  // True once the peer's kernel has all that was sent, or never will.
  bool is_flushed();
  // Closes the connection on gloo's thread. Any thread, does not wait.
  void hang_up() noexcept;
  // Waits a moment for that.
  void wait_closed();
  // Returns once a failure that has woken somebody has also been recorded in the context.
  void settle() { const std::lock_guard lock(m_); }

  // Gives up a receive posted here. Its buffer may be destroyed whatever the answer; false says that its message has
  // begun to arrive, or that it is not here.
  bool withdraw_receive(const Buffer& buffer, uint64_t slot);
  // Gives up a send: what has not been written yet is copied, and goes out when the peer asks for it.
  void detach_send(const Buffer& buffer, uint64_t slot);

  struct Adopted {
    bool posted = false;             // `buffer` took the orphan's place
    std::unique_ptr<Buffer> orphan;  // or this orphan has, or is getting, the message; null: there was no orphan
  };
  // Serves a new receive from the oldest orphan of its slot, if there is one.
  Adopted adopt(Buffer& buffer, uint64_t slot);
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

  std::unique_ptr<Buffer> make_buffer(void* data, size_t size) const;
  void move(int events);
  bool read_preamble();
  void prepare_payload();
  bool read_payload();
  size_t receive(void* to, size_t bytes);
  bool write_queued();
  void expect_events(uint32_t events, int change = EPOLL_CTL_MOD);
  void be_registered();
  bool is_driver() const { return driven_ && Drive::is_of(owner_); }
  void put_oldest_first(uint64_t slot, std::deque<UnboundBufferOp>& receives);
  void divert(Held receiver, bool orphaned);
  void finish_spill();
  void keep_for_later(Spill& arrived, Buffer& orphan);
  bool is_orphan(const Pending* buffer, uint64_t slot) const;
  Held detach(const Pending& buffer, size_t offset, size_t bytes);
};

}  // namespace backplane::gloo
