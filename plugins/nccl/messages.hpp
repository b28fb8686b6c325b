// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives. NCCL's own have no tags, need equal sizes at both ends, and match in call order. The ranks
// therefore match messages with an sdk::Messenger, whose frames the Transport carries. The data is out-of-band: both
// ends add it to the channel of its direction in the order of the data frames, which is the same at both ends. Messages
// of a rank to itself are matched in the same way and copied.
//
// A message is ordered after the work that the caller's stream held at submit. Later work in that stream must wait for
// the message's Work.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backplane/sdk/device.hpp"
#include "backplane/sdk/messenger.hpp"
#include "channel.hpp"
#include "failure.hpp"
#include "transport.hpp"

namespace backplane::nccl {

class Messages {
 public:
  // `wake` wakes the poller. Called from any thread, under locks.
  Messages(const Channel::Config& config, int32_t rank, int32_t world_size, GroupFailure& failure, Transport& transport,
           std::function<void()> wake);

  // Starts a BP_SEND or BP_RECV; null: it is done. The Work must not outlive this object. Thread-safe, does not block.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);
  const bp_probe_api* probe_table() const { return messenger_.probe_table(); }

  // All others: the poller's thread.

  // Processes a frame that is not a goodbye. Throws BP_INTERNAL if it is malformed.
  void on_frame(int32_t peer, const Frame& frame);
  // Passes on frames and progresses channels. True if anything happened. Throws failures that must end the group:
  // NCCL's errors, and the loss of a peer whose channel still holds a message after the grace period. Such a channel
  // cannot be stopped alone: its kernel may wait for work in the caller's stream that stops only when all communicators
  // end.
  bool progress();
  // The peer is lost: it sends and receives nothing more, except the messages in its channels.
  void lost(int32_t peer, const sdk::Failure& why, std::chrono::nanoseconds grace);
  // Whether a channel holds a message or a copy is in progress.
  bool busy() const;
  // Queues the remaining frames, for a group that leaves in order.
  void pass_frames();
  // The end, as in Channel.
  void collect_finished() noexcept;
  void abort() noexcept;
  bool is_idle() noexcept;
  void fail(const sdk::Failure& why) noexcept;
  void close(int64_t timeout_ns);

 private:
  using Clock = std::chrono::steady_clock;

  // The messages of one bp_group_submit_batch share an event.
  struct Batch {
    std::thread::id thread;
    void* stream = nullptr;
    uint64_t next = 0;                   // bp_op.seq
    std::shared_ptr<const Event> event;  // null: there is no batch
  };
  // A message of this rank to itself with at least one end on the device.
  struct Copy {
    Transfer from;
    Transfer to;
    PooledMemory pinned;  // if the other end is host memory
    std::shared_ptr<const Event> end;
  };
  struct Peer {
    std::unique_ptr<Channel> sending;
    std::unique_ptr<Channel> receiving;
    std::optional<sdk::Failure> lost;
    Clock::time_point lost_at;
    std::chrono::nanoseconds grace;
  };

  std::shared_ptr<const Event> event_of(const bp_op& op);
  std::shared_ptr<const Event> take_batch(const Batch& here);
  bool pass_new_frames();
  void pass(int32_t peer);
  Transfer outgoing() const;
  void receive(int32_t peer, Transfer transfer);
  void copy_to_self(Transfer to);
  bool progress_copies();
  void start(Copy& copy);
  bool progress_channel(int32_t rank, Channel& channel);
  void each_channel(const std::function<void(int32_t peer, Channel& channel)>& body) const;
  Peer& at(int32_t peer) { return peers_[static_cast<size_t>(peer)]; }

  const Channel::Config c_;
  const int32_t rank_;
  GroupFailure& failure_;
  Transport& transport_;
  const std::function<void()> wake_;
  std::atomic<bool> has_frames_ = false;  // the messenger may have frames
  sdk::Messenger messenger_;
  std::mutex batch_mutex_;
  Batch batch_;
  // Of the poller's thread:
  sdk::Messenger::Frame frame_;  // being passed on; stays here if that fails
  std::vector<Peer> peers_;
  std::vector<Copy> copies_;
  Stream copy_stream_;
  Event last_;  // of copy_stream_, after abort
};

}  // namespace backplane::nccl
