// SPDX-License-Identifier: Apache-2.0
//
// What a Messenger sends to one peer: its frames in order, then the data of announced messages in the order in which
// their receivers became ready, then credit. Guarded by the Messenger's lock.
#pragma once

#include "messenger.hpp"

namespace backplane::sdk {
namespace detail {
enum FrameKind : uint32_t { kEager = 1, kAnnounce, kReady, kData, kWithdraw, kCredit };
inline bool carries_data(uint32_t kind) { return kind == kEager || kind == kData; }
}  // namespace detail

class Messenger::SendQueue {
 public:
  using Buffer = std::shared_ptr<BorrowedBuffer>;
  struct Announced {
    const std::byte* data;
    uint64_t size;
    uint64_t offset;  // bytes passed to the transport
    Buffer buffer;
  };

  // `limits` outlives this object. `out_of_band`: the transport moves the data of announced messages.
  SendQueue(const Limits& limits, bool out_of_band) : limits_(limits), out_of_band_(out_of_band) {}

  void add(Frame frame) { frames_.push_back(std::move(frame)); }
  // Messages whose announcements were added.
  void announce(std::map<uint64_t, Announced>& messages) noexcept { announced_.merge(messages); }
  // Returns true if the queue has got data to send.
  bool receiver_is_ready(uint64_t id) {
    if (!announced_.contains(id)) return false;  // it was withdrawn
    if (std::find(ready_ids_.begin(), ready_ids_.end(), id) != ready_ids_.end()) return false;
    ready_ids_.push_back(id);
    return true;
  }
  void receiver_discards(uint64_t id) { announced_.erase(id); }

  // The window: bytes of eager messages at the peer that no receive has taken.
  bool has_window(uint64_t size) const { return window_used_ + size + kOverhead <= limits_.window; }
  void use_window(uint64_t size) { window_used_ += size + kOverhead; }
  void return_window(uint64_t bytes) { window_used_ -= std::min(window_used_, bytes); }
  // Bytes of the peer's window to return to it. Returns true if they are enough for a frame.
  bool add_credit(uint64_t bytes) {
    credit_due_ += bytes;
    return has_credit();
  }

  bool has_frame() const { return !frames_.empty() || !ready_ids_.empty() || has_credit(); }
  // Whether flush must wait.
  bool is_busy() const { return is_sending_ || !frames_.empty() || !ready_ids_.empty(); }
  // Both require has_frame.
  void take(Frame& frame);
  void take(Bytes& bytes);
  // The transport has taken the previous Bytes, or never will; then `lost` is why the peer is lost, if it is.
  void confirm();
  void refuse(const std::optional<Failure>& lost);

  // Fails a send. No effect once all its frames have been taken. Returns true if a frame was added.
  bool cancel(uint64_t id, const Failure& why);
  // The peer is lost: fails all sends, and those of which all frames were taken if `borrowed_too`.
  void lose(const Failure& why, bool borrowed_too);
  // Fails all sends, also the one whose Bytes the transport has.
  void abort(const Failure& why);

 private:
  bool has_credit() const { return credit_due_ >= limits_.window / 4; }
  void take_frame(Frame& frame);
  void take_piece(Frame& frame);

  const Limits& limits_;
  const bool out_of_band_;
  std::deque<Frame> frames_;
  std::map<uint64_t, Announced> announced_;             // by id
  std::deque<uint64_t> ready_ids_;                      // of announced messages
  std::deque<std::weak_ptr<BorrowedBuffer>> borrowed_;  // buffers of frames passed to the transport
  bool is_sending_ = false;                             // Bytes were passed to the transport and not confirmed
  Buffer unconfirmed_;                                  // the buffer of their message, if they end it
  std::vector<Buffer> refused_;                         // buffers of Bytes that the transport did not take
  uint64_t window_used_ = 0;
  uint64_t credit_due_ = 0;
};

inline void Messenger::SendQueue::take(Frame& frame) {
  take_frame(frame);
  if (!frame.buffer) return;
  while (!borrowed_.empty() && borrowed_.front().expired()) borrowed_.pop_front();
  borrowed_.emplace_back(frame.buffer);
}

inline void Messenger::SendQueue::take(Bytes& bytes) {
  is_sending_ = true;
  Frame frame;
  take_frame(frame);
  bytes.resize(kHeadSize + frame.data.size());
  std::memcpy(bytes.data(), &frame.head, kHeadSize);
  if (!frame.data.empty()) std::memcpy(bytes.data() + kHeadSize, frame.data.data(), frame.data.size());
  if (!announced_.contains(frame.head.id)) unconfirmed_ = std::move(frame.buffer);
}

inline void Messenger::SendQueue::confirm() {
  unconfirmed_.reset();
  is_sending_ = false;
}

inline void Messenger::SendQueue::refuse(const std::optional<Failure>& lost) {
  if (unconfirmed_ && lost) unconfirmed_->fail(*lost);
  if (unconfirmed_ && !lost) refused_.push_back(unconfirmed_);
  confirm();
}

inline void Messenger::SendQueue::take_frame(Frame& frame) {
  if (!frames_.empty()) {
    frame = std::move(frames_.front());
    frames_.pop_front();
  } else if (!ready_ids_.empty()) {
    take_piece(frame);
  } else {
    frame = control(detail::kCredit, 0, 0, std::exchange(credit_due_, 0));
  }
}

inline void Messenger::SendQueue::take_piece(Frame& frame) {
  const auto message = announced_.find(ready_ids_.front());
  Announced& m = message->second;
  const uint64_t size = out_of_band_ ? m.size : std::min(m.size - m.offset, limits_.piece);
  frame = control(detail::kData, 0, message->first, m.size);
  if (!out_of_band_) frame.head.payload = static_cast<uint32_t>(size);
  frame.data = {m.data + m.offset, size};
  frame.buffer = m.buffer;
  m.offset += size;
  if (m.offset < m.size) return;
  announced_.erase(message);
  ready_ids_.pop_front();
}

inline bool Messenger::SendQueue::cancel(uint64_t id, const Failure& why) {
  if (const auto message = announced_.find(id); message != announced_.end()) {
    add(control(detail::kWithdraw, 0, id, 0));
    message->second.buffer->fail(why);
    announced_.erase(message);
    std::erase(ready_ids_, id);
    return true;
  }
  const auto frame = std::find_if(frames_.begin(), frames_.end(), [id](const Frame& f) {
    return f.head.kind == detail::kEager && f.buffer && f.head.id == id;
  });
  if (frame == frames_.end()) return false;
  frame->buffer->fail(why);
  return_window(frame->head.payload + kOverhead);
  frames_.erase(frame);
  return false;
}

inline void Messenger::SendQueue::lose(const Failure& why, bool borrowed_too) {
  for (auto& [id, m] : announced_) m.buffer->fail(why);
  for (const Frame& frame : frames_) {
    if (frame.buffer) frame.buffer->fail(why);
  }
  // Only the transport knows whether the peer received the last Bytes before it was lost.
  for (const Buffer& buffer : refused_) buffer->fail(why);
  for (const auto& each : borrowed_) {
    const Buffer buffer = borrowed_too ? each.lock() : nullptr;
    if (buffer) buffer->fail(why);
  }
  announced_.clear();
  ready_ids_.clear();
  frames_.clear();
  refused_.clear();
}

inline void Messenger::SendQueue::abort(const Failure& why) {
  if (unconfirmed_) unconfirmed_->fail(why);
  lose(why, true);
  borrowed_.clear();
  confirm();
}

struct Messenger::Incoming {  // an announced message from the peer
  uint64_t tag;
  uint64_t size;
  uint64_t offset;                 // bytes received
  std::optional<Receive> receive;  // the receive that has taken it
  Bytes stash;                     // data received after its receive was cancelled
  bool is_cancelled = false;       // out-of-band: fail `receive` if the message is withdrawn
};

struct Messenger::Peer {
  SendQueue sending;
  std::map<uint64_t, Incoming> in;  // by the peer's id
  std::optional<Failure> lost;
};

}  // namespace backplane::sdk

#include "messenger_impl.hpp"
