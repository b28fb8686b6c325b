// SPDX-License-Identifier: Apache-2.0
//
// Send and receive over any transport that carries frames between two ranks in order and without loss: a socket, a
// library's queue, a ring in shared memory. The backend moves frames. The Messenger implements tags, any source, any
// tag, truncation, messages to this rank itself, probes, cancellation, bounded memory and lost peers. Its backend
// declares BP_BACKEND_ANY_TAG, and returns probe_table() for BP_EXT_PROBE and notify_table() for BP_EXT_NOTIFY.
//
//     messenger_.submit(op)                      for each send and recv
//     while (messenger_.next(peer, frame)) ...   on the backend's thread: carry this frame to the peer, then the next
//     messenger_.arrived(peer, frame)            for each frame from a peer
//     messenger_.lost(peer, why)                 when no more frames come from the peer
//
// WIRE. A frame is a Head and `payload` bytes. A message up to Limits::eager is sent at once, and waits at its receiver
// if no receive matches, as long as this sender's waiting messages stay below Limits::window. The receiver returns
// window by `credit` frames. Any other message is announced, and stays in the sender's buffer until its receiver is
// `ready`. Its data follows in pieces of at most Limits::piece. If a message is cancelled, it is withdrawn, and the
// receive that had taken it is posted again with its old order. If a receive is cancelled during its data, the next
// matching receive gets the message.
//
// FRAMES are returned as an owned copy (Bytes), or as a head and data in the sender's buffer (Frame), which saves a
// copy. A backend uses only one of the two for each peer.
//
// OUT-OF-BAND DATA. A transport that moves the data of announced messages itself, as between the memories of devices,
// passes `on_data`. The frame that stands for the data then has no payload, and holds the sender's whole buffer
// (Frame). Its receiver gets the receive through `on_data`. Frames to this rank itself are carried like all others.
//
// THREADS. submit, cancel, abort, flush and lost: any thread. next and not_carried: one call at a time per peer;
// arrived likewise. The callback `on_ready` means that next(peer) has a frame again. It may be called on any thread,
// under locks: it must only set a flag or wake a thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mailbox.hpp"
#include "process_group.hpp"

namespace backplane::sdk {

// A sender's buffer that frames refer to. The send ends when the last reference is released.
class BorrowedBuffer {
 public:
  explicit BorrowedBuffer(std::shared_ptr<Completion> sent) : sent_(std::move(sent)) {}
  ~BorrowedBuffer() { failure_ ? sent_->fail(*failure_) : sent_->finish(); }
  BorrowedBuffer(const BorrowedBuffer&) = delete;
  BorrowedBuffer& operator=(const BorrowedBuffer&) = delete;

  const std::shared_ptr<Completion>& sent() const { return sent_; }

 private:
  friend class Messenger;
  // Sets the failure of the send. Only the first call has an effect. Under the Messenger's lock.
  void fail(const Failure& why) {
    if (!failure_) failure_.emplace(why);
  }

  const std::shared_ptr<Completion> sent_;
  std::optional<Failure> failure_;
};

class Messenger {
 public:
  using Bytes = std::vector<std::byte>;
  static constexpr uint64_t kEagerLimit = UINT64_C(16) << 10;
  static constexpr uint64_t kWindow = UINT64_C(1) << 20;
  static constexpr uint64_t kPiece = UINT64_C(256) << 10;
  static constexpr uint64_t kOverhead = 128;  // bytes of window for each eager message in addition to its data

  // Must be equal on all ranks, except `piece` and `borrows_eager`.
  struct Limits {
    uint64_t eager = kEagerLimit;  // largest message that is sent before its receiver is ready, in bytes
    uint64_t window = kWindow;     // unreceived bytes of such messages per peer
    uint64_t piece = kPiece;       // bytes of data in one frame
    // True: frames of eager messages refer to the sender's buffer; the send ends when they are released. False: eager
    // messages are copied; their send is done at once.
    bool borrows_eager = false;
  };

  // The head of each frame. Little endian, like all of Backplane.
  struct Head {
    uint32_t kind;
    uint32_t payload;  // bytes after this head
    uint64_t tag;      // eager, announce
    uint64_t id;       // of the sender's message: eager, announce, ready, data, withdraw
    uint64_t size;     // announce: bytes of the message; ready: 1: discard the data; credit: bytes returned
  };
  static constexpr size_t kHeadSize = sizeof(Head);

  struct Frame {
    Head head = {};
    std::span<const std::byte> data;  // `head.payload` bytes, in `copy` or in the sender's buffer
    Bytes copy;
    std::shared_ptr<BorrowedBuffer> buffer;  // owns the sender's buffer; release it once the data is read
  };

  Messenger(int32_t rank, int32_t world_size, std::function<void(int32_t peer)> on_ready);
  // For out-of-band data. The transport moves exactly `size` bytes, in the order of these calls, into receive.data, and
  // settles receive.received: neither lost nor abort does it from now on. Called by arrived, under a lock. If it
  // throws, the receive stays with the Messenger.
  using OnData = std::function<void(int32_t peer, uint64_t size, const Receive& receive)>;

  Messenger(int32_t rank, int32_t world_size, std::function<void(int32_t peer)> on_ready, const Limits& limits,
            OnData on_data = {});

  // Starts a BP_SEND or BP_RECV; null: it is already done. Does not block. Throws the reason if the group was aborted
  // or the peer is lost. The Work must not outlive this object.
  std::unique_ptr<CompletionWork> submit(const bp_op& op);
  // The same for the backend's own collectives. Sizes are bytes. Use tags from 2^32 to 2^63 - 1.
  // `sent`: the completion of a send that is not done at once; made if it is null.
  std::unique_ptr<CompletionWork> send(int32_t peer, uint64_t tag, const void* data, uint64_t size,
                                       std::shared_ptr<Completion> sent = nullptr);
  std::unique_ptr<CompletionWork> recv(int32_t peer, uint64_t tag, void* data, uint64_t capacity,
                                       bp_result* result = nullptr) {
    return recv({peer, tag, data, capacity, result, nullptr, 0, false}, nullptr);
  }
  // `receive.received` is made if it is null. `message`: a probed one, which this call consumes, or null.
  std::unique_ptr<CompletionWork> recv(Receive receive, bp_message* message);

  // A matched probe, like Mailbox::probe.
  bp_message* probe(int32_t source, uint64_t tag, bp_result& result) { return mailbox_.probe(source, tag, result); }
  void drop(bp_message* message) noexcept { mailbox_.drop(message); }
  // The value of the group's extension(BP_EXT_PROBE). Valid as long as this object.
  const bp_probe_api* probe_table() const { return probe_.table(); }

  // Fails all operations, in flight and later, with `why`; next returns false from then on. A send
  // whose buffer is borrowed ends when it is released. Only the first call has an effect.
  void abort(const Failure& why);
  bool aborted();

  // Waits until the transport has taken all ready frames, so that messages whose send is done arrive. False: not within
  // timeout_ns. For the destructor of a group, while the transport's thread still runs. Bytes only.
  bool flush(int64_t timeout_ns);

  // Whether next would return a frame.
  bool has_frame(int32_t peer);
  // Takes the next frame for a peer. False: there is none now. Release its buffer before this object is destroyed.
  bool next(int32_t peer, Frame& frame);
  // The same as one array. The next call reports that the transport has taken the previous frame, which ends its send:
  // call it again as soon as that is true.
  bool next(int32_t peer, Bytes& frame);
  // Reports that the transport will never take the previous frame. Its send ends when the peer is lost.
  void not_carried(int32_t peer);

  // Processes a received frame. Throws BP_PEER_LOST if it is malformed: then call lost.
  void arrived(int32_t peer, std::span<const std::byte> frame);
  // The same for a frame with separate head and data. `keep` (may be empty) as in Mailbox::deliver.
  void arrived(int32_t peer, const Head& head, std::span<const std::byte> data, const Mailbox::Keep& keep = {});
  // The size of the whole frame that begins with these kHeadSize bytes; for byte streams. Throws likewise.
  static size_t frame_size(const std::byte* head, uint64_t max_payload = kPiece);

  // The peer sends and receives nothing more. Messages that have arrived whole can still be received.
  // `borrowed_too`: also fails sends of which the transport has all frames.
  void lost(int32_t peer, const Failure& why, bool borrowed_too = false);

 private:
  // messenger_queue_impl.hpp
  class SendQueue;
  struct Incoming;
  struct Peer;

  std::unique_ptr<CompletionWork> send_to_self(uint64_t tag, const void* data, uint64_t size);
  static Frame control(uint32_t kind, uint64_t tag, uint64_t id, uint64_t size);
  [[noreturn]] static void refuse_frame(int32_t peer, const std::string& what);
  Peer& at(int32_t peer);
  void queue(int32_t peer, Frame frame);
  bool has_frame(const Peer& peer) const;
  void announce_arrived(int32_t peer, const Head& head);
  void ready_arrived(int32_t peer, const Head& head);
  void add_credit(int32_t peer, uint64_t size);
  bool fetch(int32_t peer, uint64_t id, Receive* receive);
  void data_arrived(int32_t peer, uint64_t id, std::span<const std::byte> data);
  void data_arrived_out_of_band(int32_t peer, const Head& head);
  void withdraw_arrived(int32_t peer, uint64_t id);
  void cancel_send(int32_t peer, uint64_t id);
  void cancel_recv(const Completion* which);

  const int32_t rank_;
  const Limits limits_;
  const std::function<void(int32_t)> on_ready_;
  const OnData on_data_;  // empty: data is in the frames
  const Failure cancelled_{BP_CANCELLED, "cancelled by this rank"};
  Mailbox mailbox_;  // its lock may be held while mutex_ is taken, never the other way round
  MailboxProbe probe_{mailbox_};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  uint64_t next_id_ = 0;
  std::optional<Failure> aborted_;
};

}  // namespace backplane::sdk

#include "messenger_queue_impl.hpp"
