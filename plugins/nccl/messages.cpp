// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace backplane::nccl {
namespace {

// A message's. A library that does not stop holds it up no longer than Fate allows.
class MessageWork final : public sdk::Work {
 public:
  MessageWork(const Channel::Config& config, bool is_host, std::shared_ptr<MessageEnd> done,
              std::function<void()> cancel, const Fate& fate)
      : c_(config), is_host_(is_host), done_(std::move(done)), cancel_(std::move(cancel)), fate_(fate) {}
  bool wait(int64_t timeout_ns) override {
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    for (;;) {
      const int64_t left = deadline.left_ns();
      if (done_->wait(left < 0 ? kTurn : std::min(left, kTurn))) return true;
      if (fate_.decided() && fate_.await_settled(0)) done_->fail(fate_.why());
      if (deadline.passed()) return done_->wait(0);
    }
  }
  void cancel() noexcept override { cancel_(); }
  // A message is not notified when it enters a stream, only when it ends.
  bool wait_on_stream(void* stream, int64_t timeout_ns) override {
    if (is_host_) throw sdk::Failure(BP_UNSUPPORTED, "nccl: a message in host memory does not end in a stream");
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    for (;;) {
      if (wait(0)) return true;
      if (const std::shared_ptr<const Event> point = done_->point()) {
        const OnDevice here(c_.api, c_.device);
        check(c_.api, c_.api.cuda.stream_wait_event(static_cast<cudaStream_t>(stream), point->get(), 0),
              "having a stream wait for a message");
        return true;
      }
      if (deadline.passed()) return false;
      if (done_->wait(kLook)) return true;
    }
  }

 private:
  static constexpr int64_t kTurn = 50'000'000;  // nanoseconds
  static constexpr int64_t kLook = 100'000;
  const Channel::Config& c_;
  const bool is_host_;
  const std::shared_ptr<MessageEnd> done_;
  const std::function<void()> cancel_;
  const Fate& fate_;
};

sdk::Failure nonsense(int32_t peer, const char* what) {
  return {BP_PEER_LOST, "nccl: rank " + std::to_string(peer) + what, peer};
}

}  // namespace

Messages::Messages(const Channel::Config& config, int32_t rank, int32_t world_size, Fate& fate, Wire& wire,
                   std::function<void()> wake)
    : c_(config),
      rank_(rank),
      fate_(fate),
      wire_(wire),
      wake_(std::move(wake)),
      peers_(static_cast<size_t>(world_size)),
      copying_(config.api, config.device) {}

std::unique_ptr<sdk::Work> Messages::submit(const bp_op& op) {
  if (op.kind == BP_SEND) return send(op);
  bool is_posted = false;
  try {
    return recv(op, is_posted);
  } catch (...) {
    if (op.message != nullptr && !is_posted) mailbox_.drop(op.message);
    throw;
  }
}

Transfer Messages::transfer(const bp_op& op, const bp_buffer& buffer, std::shared_ptr<MessageEnd> done) {
  const uint64_t bytes = buffer.count * bp_dtype_size(op.dtype);
  Transfer made{buffer.data, bytes, buffer.memory == BP_HOST, {}, std::move(done)};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): of BP_NO_STREAM
  if (!made.is_host && bytes > 0 && op.stream != BP_NO_STREAM) made.after = point_of(op);
  return made;
}

// What its stream holds by now. Nothing has come into it since the message before it in a batch. CUDA is called without
// the lock: it blocks while the stream's queue is full, and what empties that may have to come through here.
std::shared_ptr<const Event> Messages::point_of(const bp_op& op) {
  const Batch here = {std::this_thread::get_id(), op.stream, op.seq, nullptr};
  std::shared_ptr<const Event> point = take_batch(here);
  if (!point) {
    const OnDevice on_device(c_.api, c_.device);
    point = std::make_shared<const Event>(c_.pool, static_cast<cudaStream_t>(op.stream));
  }
  if ((op.flags & BP_OP_MORE) != 0) {
    const std::lock_guard lock(mutex_);
    batch_ = {here.thread, here.stream, here.next + 1, point};
  }
  return point;
}

// The event of the batch that continues here, or null.
std::shared_ptr<const Event> Messages::take_batch(const Batch& here) {
  const std::lock_guard lock(mutex_);
  const bool goes_on = batch_.thread == here.thread && batch_.stream == here.stream && batch_.next == here.next;
  std::shared_ptr<const Event> point = std::exchange(batch_.point, nullptr);
  return goes_on ? point : nullptr;
}

std::unique_ptr<sdk::Work> Messages::work(bool is_host, std::shared_ptr<MessageEnd> done,
                                          std::function<void()> cancel) const {
  return std::make_unique<MessageWork>(c_, is_host, std::move(done), std::move(cancel), fate_);
}

// After BP_RESOURCE the caller frees the buffers. The Work is therefore made before the operation becomes visible to
// other threads; nothing fails afterwards.
std::unique_ptr<sdk::Work> Messages::send(const bp_op& op) {
  auto done = std::make_shared<MessageEnd>();
  Transfer mine = transfer(op, op.input, done);
  const uint64_t bytes = mine.bytes;
  const bool is_host = mine.is_host;
  if (op.peer == rank_) return send_to_self(op.tag, std::move(mine));
  std::unique_ptr<sdk::Work> made;
  std::map<uint64_t, Transfer> entry;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) throw *failed_;
    Peer& peer = at(op.peer);
    if (peer.lost) throw *peer.lost;
    const uint64_t id = ++next_id_;
    if (bytes > 0) {
      made = work(is_host, std::move(done), [this, peer = op.peer, id] { cancel_send(peer, id); });
      entry.emplace(id, std::move(mine));
    }
    wire_.send(op.peer, {bytes == 0 ? FrameKind::kEmpty : FrameKind::kAnnounce, 0, op.tag, id, bytes, {}});
    peer.out.merge(entry);
  }
  wake_();
  return made;
}

std::unique_ptr<sdk::Work> Messages::recv(const bp_op& op, bool& is_posted) {
  auto done = std::make_shared<Incoming>();
  Transfer mine = transfer(op, op.output, nullptr);
  done->is_host = mine.is_host;
  done->after = std::move(mine.after);
  {
    const std::lock_guard lock(mutex_);
    if (failed_) throw *failed_;
  }
  // Once a message is found for it, it is soon done, unless the sender withdraws that.
  std::unique_ptr<sdk::Work> made = work(mine.is_host, done, [this, done] {
    done->is_cancelled.store(true);
    mailbox_.cancel(done.get());
  });
  sdk::Receive receive{op.peer, op.tag, mine.data, mine.bytes, op.result, done, 0, false};
  is_posted = true;
  if (op.message == nullptr) {
    mailbox_.take(std::move(receive));
  } else {
    mailbox_.take(op.message, std::move(receive));
  }
  wake_();
  return made;
}

void Messages::tell(int32_t peer, FrameKind kind, uint64_t id) { wire_.send(peer, {kind, 0, 0, id, 0, {}}); }

void Messages::arrived(int32_t peer, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kEmpty:
      return mailbox_.deliver(peer, frame.tag, {});
    case FrameKind::kAnnounce: {
      {
        const std::lock_guard lock(mutex_);
        if (frame.size == 0 || !at(peer).in.emplace(frame.id, Announced{frame.size, {}}).second) {
          throw nonsense(peer, " announced a message that cannot be");
        }
      }
      return mailbox_.announce(peer, frame.tag, frame.size, frame.id,
                               [this, peer, id = frame.id](sdk::Receive* receive) { return fetch(peer, id, receive); });
    }
    case FrameKind::kReady:
      return begin_send(peer, frame.id);
    case FrameKind::kRefused: {
      const std::lock_guard lock(mutex_);
      const auto found = at(peer).out.find(frame.id);
      if (found == at(peer).out.end()) return;
      found->second.done->finish();
      at(peer).out.erase(found);
      return;
    }
    case FrameKind::kBegin:
      return begin_recv(peer, frame);
    case FrameKind::kWithdraw:
      return withdrawn(peer, frame.id);
    default:
      throw nonsense(peer, " sent a frame that makes no sense");
  }
}

// A receive has taken an announced message, or found it too long. The mailbox's lock is held.
bool Messages::fetch(int32_t peer, uint64_t id, sdk::Receive* receive) {
  const std::lock_guard lock(mutex_);
  const auto found = at(peer).in.find(id);
  if (found == at(peer).in.end()) return false;
  tell(peer, receive == nullptr ? FrameKind::kRefused : FrameKind::kReady, id);
  if (receive == nullptr) {
    at(peer).in.erase(found);
  } else {
    found->second.receive = *receive;
  }
  wake_();
  return true;
}

Transfer Messages::incoming(const sdk::Receive& receive, uint64_t bytes) {
  auto done = std::static_pointer_cast<Incoming>(receive.received);
  return {receive.data, bytes, done->is_host, std::move(done->after), done};
}

void Messages::begin_send(int32_t peer, uint64_t id) {
  const std::lock_guard lock(mutex_);
  Peer& to = at(peer);
  const auto found = to.out.find(id);
  if (found == to.out.end()) return;  // withdrawn meanwhile
  Frame begin{FrameKind::kBegin, 0, 0, id, found->second.bytes, {}};
  if (!to.sending) {
    begin.channel = Communicator::new_id(c_.api);
    begin.has_channel = 1;
    to.sending = std::make_unique<Channel>(c_, true, begin.channel);
  }
  wire_.send(peer, begin);
  to.sending->enter(std::move(found->second));
  to.out.erase(found);
}

void Messages::begin_recv(int32_t peer, const Frame& frame) {
  const std::lock_guard lock(mutex_);
  Peer& from = at(peer);
  const auto found = from.in.find(frame.id);
  if (found == from.in.end() || !found->second.receive || found->second.size != frame.size ||
      (!from.receiving && frame.has_channel == 0)) {
    throw nonsense(peer, " began a message that nobody took");
  }
  if (!from.receiving) from.receiving = std::make_unique<Channel>(c_, false, frame.channel);
  from.receiving->enter(incoming(*found->second.receive, found->second.size));
  from.in.erase(found);
}

void Messages::withdrawn(int32_t peer, uint64_t id) {
  mailbox_.withdraw(peer, id);
  std::optional<sdk::Receive> receive;
  {
    const std::lock_guard lock(mutex_);
    const auto found = at(peer).in.find(id);
    if (found == at(peer).in.end()) return;
    receive = std::move(found->second.receive);
    at(peer).in.erase(found);
  }
  if (!receive) return;
  const std::shared_ptr<sdk::Completion> done = receive->received;
  mailbox_.restore(std::move(*receive));
  if (static_cast<Incoming&>(*done).is_cancelled.load()) mailbox_.cancel(done.get());
}

void Messages::cancel_send(int32_t peer, uint64_t id) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const auto found = at(peer).out.find(id);
    if (found == at(peer).out.end()) return;  // it is in the channel, and soon done
    if (peer != rank_) tell(peer, FrameKind::kWithdraw, id);
    found->second.done->fail(cancelled_);
    at(peer).out.erase(found);
  } catch (const std::bad_alloc&) {
    fate_.decide(no_memory_);
    return;
  }
  if (peer == rank_) mailbox_.withdraw(rank_, id);
  wake_();
}

void Messages::each_channel(const std::function<void(int32_t peer, Channel& channel)>& body) const {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].sending) body(static_cast<int32_t>(peer), *peers_[peer].sending);
    if (peers_[peer].receiving) body(static_cast<int32_t>(peer), *peers_[peer].receiving);
  }
}

bool Messages::progress() {
  bool moved = progress_copies();
  each_channel([this, &moved](int32_t peer, Channel& channel) { moved |= progress_channel(peer, channel); });
  return moved;
}

bool Messages::progress_channel(int32_t rank, Channel& channel) {
  if (!channel.busy()) return false;
  const Peer& peer = at(rank);
  try {
    if (channel.progress()) return true;
  } catch (const sdk::Failure& why) {
    if (peer.lost) throw sdk::Failure(*peer.lost);  // which NCCL noticed, too
    throw sdk::Failure(why.status(), std::string(why.what()) + " (a message with rank " + std::to_string(rank) + ")",
                       why.status() == BP_PEER_LOST ? rank : -1, why.native_code());
  }
  const auto since = peer.lost ? channel.waits_since() : std::nullopt;
  if (since && Clock::now() > std::max(peer.lost_at, *since) + peer.grace) throw sdk::Failure(*peer.lost);
  return false;
}

bool Messages::busy() {
  bool is_busy = false;
  each_channel([&is_busy](int32_t, Channel& channel) { is_busy |= channel.busy(); });
  const std::lock_guard lock(mutex_);
  return is_busy || !copies_.empty();
}

void Messages::lost(int32_t peer, const sdk::Failure& why, std::chrono::milliseconds grace) {
  {
    const std::lock_guard lock(mutex_);
    Peer& gone = at(peer);
    if (gone.lost) return;
    gone.lost.emplace(why);
    gone.lost_at = Clock::now();
    gone.grace = grace;
    gone.fail_announced(why);
  }
  mailbox_.drop_peer(peer, why, peers_.size() - 1);
}

void Messages::look_once_more() noexcept {
  each_channel([](int32_t, Channel& channel) { channel.look_once_more(); });
}

void Messages::abort() noexcept {
  each_channel([](int32_t, Channel& channel) { channel.abort(); });
}

bool Messages::is_still() noexcept {
  bool is_still = true;
  each_channel([&is_still](int32_t, Channel& channel) { is_still = is_still && channel.is_still(); });
  const std::lock_guard lock(mutex_);
  return is_still && (copies_.empty() || copying_.is_still(c_.pool, last_));
}

void Messages::Peer::fail_announced(const sdk::Failure& why) noexcept {
  for (const auto& [id, transfer] : out) transfer.done->fail(why);
  for (const auto& [id, announced] : in) {
    if (announced.receive) announced.receive->received->fail(why);
  }
  out.clear();
  in.clear();
}

void Messages::fail(const sdk::Failure& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_.emplace(why);
    for (Peer& peer : peers_) peer.fail_announced(why);
    for (const Copy& copy : copies_) {
      copy.from.done->fail(why);
      copy.to.done->fail(why);
    }
    copies_.clear();
  }
  each_channel([&why](int32_t, Channel& channel) { channel.fail(why); });
  mailbox_.close(why, why);
}

void Messages::close(int64_t timeout_ns) {
  const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
  each_channel([&deadline](int32_t, Channel& channel) { channel.close(deadline.left_ns()); });
}

}  // namespace backplane::nccl
