// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives over anything that carries frames between two ranks in order and without loss: a socket, a queue
// of a library, a ring in shared memory. The author moves frames; tags, any source, truncation, messages to oneself,
// any tag, probes, cancellation, bounds on memory and lost peers are done here. A backend over it declares
// BP_BACKEND_ANY_TAG, and answers BP_EXT_PROBE by probe_table() and BP_EXT_NOTIFY by notify_table().
//
//     messenger_.submit(op)                      for each send and recv
//     while (messenger_.next(peer, frame)) ...   on the backend's thread: carry this frame to the peer; then the next
//     messenger_.arrived(peer, frame)            what came from it
//     messenger_.lost(peer, why)                 when nothing will come from it any more
//
// THE WIRE. A frame is a Head and `payload` bytes. A message up to kEagerLimit travels at once (eager) and waits at its
// receiver if it must, as long as what waits there from this sender stays below kWindow; the receiver gives room back
// with `credit` frames. Any other is announced, and stays in the sender's buffer until its receiver is `ready`; then
// its data follows in pieces of at most kPiece. A cancelled one is withdrawn, and the receive that had taken it goes
// back to its place. A receive that is cancelled amid its data leaves the message to the next one.
//
// THREADS. submit, cancel, abort, flush, lost: any. next and not_carried: one at a time per peer; arrived likewise. The
// callback `on_ready` says that next(peer) has something again; it may come from any thread, under locks: it must only
// wake somebody.
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

class Messenger {
 public:
  using Bytes = std::vector<std::byte>;
  static constexpr uint64_t kEagerLimit = UINT64_C(16) << 10;  // bytes of a message that is sent unasked
  static constexpr uint64_t kWindow = UINT64_C(1) << 20;       // bytes of such, per peer, that no receive has taken
  static constexpr uint64_t kOverhead = 128;                   // what each of them counts beside its data
  static constexpr uint64_t kPiece = UINT64_C(256) << 10;      // bytes of data in one frame

  // What begins each frame; little endian, as all of Backplane.
  struct Head {
    uint32_t kind;
    uint32_t payload;  // bytes after this head
    uint64_t tag;      // eager, announce
    uint64_t id;       // of the sender's message: announce, ready, data, withdraw
    uint64_t size;     // announce: bytes of the message; ready: 1 if the data is not wanted; credit: bytes given back
  };
  static constexpr size_t kHeadSize = sizeof(Head);

  Messenger(int32_t rank, int32_t world_size, std::function<void(int32_t peer)> on_ready)
      : rank_(rank), on_ready_(std::move(on_ready)), peers_(static_cast<size_t>(world_size)) {}

  // A BP_SEND or BP_RECV; null: it is done already. Does not block. Throws the reason if the group was aborted or the
  // peer is lost. The Work must not outlive this object.
  std::unique_ptr<Work> submit(const bp_op& op);
  // The same for a backend's own collectives; sizes are bytes. Tags from 2^32 to 2^63 - 1 are nobody else's.
  std::unique_ptr<Work> send(int32_t peer, uint64_t tag, const void* data, uint64_t size);
  std::unique_ptr<Work> recv(int32_t peer, uint64_t tag, void* data, uint64_t capacity, bp_result* result = nullptr) {
    return recv({peer, tag, data, capacity, result, nullptr, 0, false}, nullptr);
  }

  // A matched probe, as Mailbox's.
  bp_message* probe(int32_t source, uint64_t tag, bp_result& result) { return mailbox_.probe(source, tag, result); }
  void drop(bp_message* message) noexcept { mailbox_.drop(message); }
  // What the group's extension() answers to BP_EXT_PROBE. Valid as long as this object.
  const bp_probe_api* probe_table() const { return probe_.table(); }

  // Fails everything in flight and to come with `why`; next has nothing any more. Only the first call counts.
  void abort(const Failure& why);
  bool aborted();

  // Waits until the transport has taken all that is on its way, so that messages whose send is done arrive. False: not
  // within timeout_ns. For the destructor of a group, while the transport's thread still runs.
  bool flush(int64_t timeout_ns);

  // Gives out the next frame for a peer; asking again says that the transport has the frame before it: do so as soon as
  // it has, for only then is a send done. False: nothing to carry now.
  bool next(int32_t peer, Bytes& frame);
  // Instead: the transport has not taken the frame before, and never will. Its send ends when the peer is lost.
  void not_carried(int32_t peer);

  // Takes in a frame. Throws BP_PEER_LOST if it makes no sense: then call lost.
  void arrived(int32_t peer, std::span<const std::byte> frame);
  // The size of the whole frame that begins with these kHeadSize bytes; for byte streams. Throws likewise.
  static size_t frame_size(const std::byte* head);

  // Nothing comes from this peer any more, nor goes to it. What has arrived whole is still received.
  void lost(int32_t peer, const Failure& why);

 private:
  struct Outgoing {  // a message that was announced
    const std::byte* data;
    uint64_t size;
    uint64_t offset;  // what has been given out
    std::shared_ptr<Completion> sent;
  };
  struct Incoming {  // the other end of one
    uint64_t tag;
    uint64_t size;
    uint64_t offset;                 // what has come
    std::optional<Receive> receive;  // who wants it
    Bytes stash;                     // what has come while nobody did
  };
  struct Peer {
    std::deque<Bytes> frames;                        // ready to leave, before any data
    std::map<uint64_t, Outgoing> out;                // by id
    std::deque<uint64_t> wanted;                     // of `out`: those whose receiver is ready
    std::map<uint64_t, Incoming> in;                 // by the peer's id
    std::shared_ptr<Completion> leaving;             // finished when the transport has the frame given out last
    std::vector<std::shared_ptr<Completion>> stuck;  // of frames that the transport did not take; fail with the peer
    bool carrying = false;                           // a frame was given out and is not known to have left
    uint64_t waiting_there = 0;                      // eager bytes at the peer that no receive has taken
    uint64_t owed = 0;                               // eager bytes from it that were taken here, not told yet
    std::optional<Failure> lost;
  };

  std::unique_ptr<Work> recv(Receive receive, bp_message* message);
  static Bytes frame(uint32_t kind, uint64_t tag, uint64_t id, uint64_t size, std::span<const std::byte> payload = {});
  [[noreturn]] static void nonsense(int32_t peer);
  Peer& at(int32_t peer) { return peers_[static_cast<size_t>(peer)]; }
  void queue(int32_t peer, Bytes bytes);
  bool next_frame(Peer& peer, Bytes& frame);
  void next_piece(Peer& peer, Bytes& frame);
  void taken(int32_t peer, uint64_t size);
  bool fetch(int32_t peer, uint64_t id, Receive* receive);
  void came(int32_t peer, uint64_t id, std::span<const std::byte> data);
  void withdrawn(int32_t peer, uint64_t id);
  void cancel_send(int32_t peer, uint64_t id);
  void cancel_recv(const Completion* which);
  void fail_all(const Failure& why);
  bool busy() const;

  const int32_t rank_;
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
