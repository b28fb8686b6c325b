// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives over anything that carries frames between two ranks in order and without loss: a socket, a queue
// of a library, a ring in shared memory. The backend moves frames. The Messenger does tags, any source, any tag,
// truncation, messages to this rank itself, probes, cancellation, bounds on memory and lost peers. A backend over it
// declares BP_BACKEND_ANY_TAG, and answers BP_EXT_PROBE by probe_table() and BP_EXT_NOTIFY by notify_table().
//
//     messenger_.submit(op)                      for each send and recv
//     while (messenger_.next(peer, frame)) ...   on the backend's thread: carry this frame to the peer, then the next
//     messenger_.arrived(peer, frame)            for each frame from a peer
//     messenger_.lost(peer, why)                 when no more frames come from the peer
//
// THE WIRE. A frame is a Head and `payload` bytes. A message up to Limits::eager is sent at once and waits at its
// receiver if it must, while the messages that wait there from this sender stay below Limits::window. The receiver
// returns window by `credit` frames. Any other message is announced, and stays in the sender's buffer until its
// receiver is `ready`. Its data follows in pieces of at most Limits::piece. A cancelled message is withdrawn, and the
// receive that had taken it returns to its place. A receive that is cancelled amid its data leaves the message to the
// next one.
//
// FRAMES are given out as bytes of their own (Bytes), or as a head and data in the sender's buffer (Frame), which saves
// a copy. A backend uses one of the two for a peer.
//
// THREADS. submit, cancel, abort, flush, lost: any. next and not_carried: one at a time per peer; arrived likewise. The
// callback `on_ready` says that next(peer) has a frame again. It may come from any thread, under locks: it must only
// set a flag or wake a thread.
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
  // The send will end so. The first failure counts. Under the Messenger's lock.
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
  static constexpr uint64_t kOverhead = 128;  // bytes that each eager message counts in the window beside its data

  // The same on all ranks, but for `piece` and `borrows_eager`.
  struct Limits {
    uint64_t eager = kEagerLimit;  // bytes of a message that is sent before its receiver asks for it
    uint64_t window = kWindow;     // bytes of such messages, per peer, that no receive has taken
    uint64_t piece = kPiece;       // bytes of data in one frame
    // True: also the frames of eager messages refer to the sender's buffer, and the send ends when they are released.
    // False: eager messages are copied, and their send is done at once.
    bool borrows_eager = false;
  };

  // What begins each frame; little endian, as all of Backplane.
  struct Head {
    uint32_t kind;
    uint32_t payload;  // bytes after this head
    uint64_t tag;      // eager, announce
    uint64_t id;       // of the sender's message: eager, announce, ready, data, withdraw
    uint64_t size;     // announce: bytes of the message; ready: 1 if the data is not wanted; credit: bytes given back
  };
  static constexpr size_t kHeadSize = sizeof(Head);

  struct Frame {
    Head head = {};
    std::span<const std::byte> data;  // `head.payload` bytes, in `copy` or in the sender's buffer
    Bytes copy;
    std::shared_ptr<BorrowedBuffer> buffer;  // keeps the sender's buffer; release it when the data has been read
  };

  Messenger(int32_t rank, int32_t world_size, std::function<void(int32_t peer)> on_ready)
      : Messenger(rank, world_size, std::move(on_ready), Limits()) {}
  Messenger(int32_t rank, int32_t world_size, std::function<void(int32_t peer)> on_ready, const Limits& limits)
      : rank_(rank),
        limits_(limits),
        on_ready_(std::move(on_ready)),
        mailbox_(limits.eager, limits.window),
        peers_(static_cast<size_t>(world_size)) {}

  // A BP_SEND or BP_RECV; null: it is done already. Does not block. Throws the reason if the group was aborted or the
  // peer is lost. The Work must not outlive this object.
  std::unique_ptr<CompletionWork> submit(const bp_op& op);
  // The same for a backend's own collectives; sizes are bytes. Tags from 2^32 to 2^63 - 1 are free for them.
  std::unique_ptr<CompletionWork> send(int32_t peer, uint64_t tag, const void* data, uint64_t size);
  std::unique_ptr<CompletionWork> recv(int32_t peer, uint64_t tag, void* data, uint64_t capacity,
                                       bp_result* result = nullptr) {
    return recv({peer, tag, data, capacity, result, nullptr, 0, false}, nullptr);
  }

  // A matched probe, as Mailbox's.
  bp_message* probe(int32_t source, uint64_t tag, bp_result& result) { return mailbox_.probe(source, tag, result); }
  void drop(bp_message* message) noexcept { mailbox_.drop(message); }
  // What the group's extension() answers to BP_EXT_PROBE. Valid as long as this object.
  const bp_probe_api* probe_table() const { return probe_.table(); }

  // Fails all operations, in flight and later, with `why`; next returns false from then on. Only the first call counts.
  // A send whose buffer is borrowed ends when it is released.
  void abort(const Failure& why);
  bool aborted();

  // Waits until the transport has taken all frames that are ready, so that messages whose send is done arrive. False:
  // not within timeout_ns. For the destructor of a group, while the transport's thread still runs. Bytes only.
  bool flush(int64_t timeout_ns);

  // Would next give out a frame?
  bool has_frame(int32_t peer);
  // Gives out the next frame for a peer. False: nothing to carry now. Release its buffer before this object ends.
  bool next(int32_t peer, Frame& frame);
  // The same in one piece. Calling again reports that the transport has taken the frame before, which ends its send: so
  // call again as soon as it has.
  bool next(int32_t peer, Bytes& frame);
  // Reports instead that the transport never will take it. Its send ends when the peer is lost.
  void not_carried(int32_t peer);

  // Takes in a frame. Throws BP_PEER_LOST if it is malformed: then call lost.
  void arrived(int32_t peer, std::span<const std::byte> frame);
  // The same of a frame whose head and data are apart. `keep` (may be empty) as Mailbox::deliver's.
  void arrived(int32_t peer, const Head& head, std::span<const std::byte> data, const Mailbox::Keep& keep = {});
  // The size of the whole frame that begins with these kHeadSize bytes; for byte streams. Throws likewise.
  static size_t frame_size(const std::byte* head, uint64_t max_payload = kPiece);

  // The peer sends and receives nothing more. Messages that have arrived whole can still be received.
  // `borrowed_too`: also fails sends of which the transport has all frames.
  void lost(int32_t peer, const Failure& why, bool borrowed_too = false);

 private:
  using Buffer = std::shared_ptr<BorrowedBuffer>;
  struct Outgoing {  // a message that was announced
    const std::byte* data;
    uint64_t size;
    uint64_t offset;  // bytes given out
    Buffer buffer;
  };
  struct Incoming {  // the other end of one
    uint64_t tag;
    uint64_t size;
    uint64_t offset;                 // bytes that have come
    std::optional<Receive> receive;  // that has taken it
    Bytes stash;                     // data that came after its receive was cancelled
  };
  struct Peer {
    std::deque<Frame> frames;                            // ready to leave, before any data
    std::map<uint64_t, Outgoing> out;                    // by id
    std::deque<uint64_t> wanted;                         // of `out`: those whose receiver is ready
    std::map<uint64_t, Incoming> in;                     // by the peer's id
    std::deque<std::weak_ptr<BorrowedBuffer>> borrowed;  // of frames given out
    bool carrying = false;                               // Bytes were given out and are not known to have left
    Buffer leaving;                                      // of their message, if they end it
    std::vector<Buffer> stuck;                           // of Bytes that the transport did not take
    uint64_t waiting_there = 0;                          // eager bytes at the peer that no receive has taken
    uint64_t owed = 0;                                   // eager bytes from it that were received and not credited
    std::optional<Failure> lost;

    void fail_borrowed(const Failure& why);
  };

  std::unique_ptr<CompletionWork> recv(Receive receive, bp_message* message);
  std::unique_ptr<CompletionWork> send_to_self(uint64_t tag, const void* data, uint64_t size);
  static Frame control(uint32_t kind, uint64_t tag, uint64_t id, uint64_t size);
  [[noreturn]] static void refuse_frame(int32_t peer);
  Peer& at(int32_t peer) { return peers_[static_cast<size_t>(peer)]; }
  void queue(int32_t peer, Frame frame);
  bool has_frame(const Peer& peer) const;
  void take_frame(Peer& peer, Frame& frame);
  void take_piece(Peer& peer, Frame& frame);
  void announced(int32_t peer, const Head& head);
  void is_ready(int32_t peer, const Head& head);
  void taken(int32_t peer, uint64_t size);
  bool fetch(int32_t peer, uint64_t id, Receive* receive);
  void came(int32_t peer, uint64_t id, std::span<const std::byte> data);
  void withdrawn(int32_t peer, uint64_t id);
  void cancel_send(int32_t peer, uint64_t id);
  void cancel_recv(const Completion* which);
  void fail_all(const Failure& why);
  bool busy() const;

  const int32_t rank_;
  const Limits limits_;
  const std::function<void(int32_t)> on_ready_;
  Mailbox mailbox_;  // its lock may be held while mutex_ is taken, never the other way round
  MailboxProbe probe_{mailbox_};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  uint64_t next_id_ = 0;
  std::optional<Failure> aborted_;
};

}  // namespace backplane::sdk

#include "messenger_impl.hpp"
