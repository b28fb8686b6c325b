// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives. NCCL's own know no tags, must be of one size at both ends and wait for each other in the order in
// which they were called. So the ranks first agree over the wire which send belongs to which receive (wire.hpp has the
// words), and only then is the message entered into the channel of that direction, at both ends in the same order.
//
// Messages are ordered after what the caller's stream held at submit; what follows them there has to wait for the Work.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backplane/sdk/device.hpp"
#include "backplane/sdk/mailbox.hpp"
#include "channel.hpp"
#include "fate.hpp"
#include "wire.hpp"

namespace backplane::nccl {

class Messages {
 public:
  Messages(const Channel::Config& config, int32_t rank, int32_t world_size, Fate& fate, Wire& wire,
           std::function<void()> wake);

  // A BP_SEND or BP_RECV; null: it is done. The Work must not outlive this object. Any thread, does not block.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);
  const bp_probe_api* probe_table() const { return probe_.table(); }

  // The poller's thread, all of these:
  void arrived(int32_t peer, const Frame& frame);
  // Gets on with the channels. True if something happened. Throws what ends the group: NCCL's errors, and the loss of a
  // peer whose channel holds a message when its grace is over. That channel cannot be stopped alone: its kernel may
  // wait behind others of the caller's stream that only the end of all communicators stops.
  bool progress();
  // Nothing more comes from this peer, but for what is in a channel.
  void lost(int32_t peer, const sdk::Failure& why, std::chrono::milliseconds grace);
  // Is a message in a channel?
  bool busy();
  // The end, as in Channel.
  void look_once_more() noexcept;
  void abort() noexcept;
  bool is_still() noexcept;
  void fail(const sdk::Failure& why) noexcept;
  void close(int64_t timeout_ns);

 private:
  struct Batch {
    std::thread::id thread;
    void* stream = nullptr;
    uint64_t next = 0;                   // bp_op.seq
    std::shared_ptr<const Event> point;  // null: none
  };
  using Clock = std::chrono::steady_clock;

  struct Announced {
    uint64_t size;                        // bytes
    std::optional<sdk::Receive> receive;  // set: that has taken it
  };
  // What a receive needs beside what the mailbox keeps. The completion of each sdk::Receive here is one.
  struct Incoming : public MessageEnd {
    bool is_host = false;
    std::shared_ptr<const Event> after;
    std::atomic<bool> is_cancelled = false;
  };
  // A message of this rank to itself: both ends, and the point in the stream where it is copied.
  struct Copy {
    Transfer from;
    Transfer to;
    Piece pinned;  // if one of them is host memory, which the device does not reach
    std::shared_ptr<const Event> copied;
  };
  struct Peer {
    std::map<uint64_t, Transfer> out;  // announced, by id; not begun
    std::map<uint64_t, Announced> in;  // announced here, by the peer's id
    std::optional<sdk::Failure> lost;
    // Ends all of `out` and `in`.
    void fail_announced(const sdk::Failure& why) noexcept;
    // Of the poller's thread:
    std::unique_ptr<Channel> sending;
    std::unique_ptr<Channel> receiving;
    Clock::time_point lost_at;
    std::chrono::milliseconds grace;
  };

  std::unique_ptr<sdk::Work> send(const bp_op& op);
  std::unique_ptr<sdk::Work> recv(const bp_op& op, bool& is_posted);
  Transfer transfer(const bp_op& op, const bp_buffer& buffer, std::shared_ptr<MessageEnd> done);
  std::shared_ptr<const Event> point_of(const bp_op& op);
  std::shared_ptr<const Event> take_batch(const Batch& here);
  std::unique_ptr<sdk::Work> work(bool is_host, std::shared_ptr<MessageEnd> done, std::function<void()> cancel) const;
  std::unique_ptr<sdk::Work> send_to_self(uint64_t tag, Transfer transfer);
  bool fetch(int32_t peer, uint64_t id, sdk::Receive* receive);
  bool fetch_own(uint64_t id, sdk::Receive* receive);
  void begin_send(int32_t peer, uint64_t id);
  void begin_recv(int32_t peer, const Frame& frame);
  void withdrawn(int32_t peer, uint64_t id);
  void cancel_send(int32_t peer, uint64_t id) noexcept;
  static Transfer incoming(const sdk::Receive& receive, uint64_t bytes);
  bool progress_copies();
  void begin(Copy& copy);
  bool progress_channel(int32_t rank, Channel& channel);
  void each_channel(const std::function<void(int32_t peer, Channel& channel)>& body) const;
  Peer& at(int32_t peer) { return peers_[static_cast<size_t>(peer)]; }
  void tell(int32_t peer, FrameKind kind, uint64_t id);

  const Channel::Config c_;
  const int32_t rank_;
  Fate& fate_;
  Wire& wire_;
  const std::function<void()> wake_;
  // Made while there is memory.
  const sdk::Failure cancelled_{BP_CANCELLED, "cancelled by this rank"};
  const sdk::Failure no_memory_{BP_RESOURCE, "nccl: there is no memory to tell a peer that a message was cancelled"};
  sdk::Mailbox mailbox_;  // its lock may be held while mutex_ is taken, never the other way round
  sdk::MailboxProbe probe_{mailbox_};
  std::mutex mutex_;
  std::vector<Peer> peers_;
  uint64_t next_id_ = 0;
  std::optional<sdk::Failure> failed_;
  std::vector<Copy> copies_;
  Batch batch_;  // that is being submitted
  Stream copying_;
  Event last_;  // of `copying_`, after abort
};

}  // namespace backplane::nccl
