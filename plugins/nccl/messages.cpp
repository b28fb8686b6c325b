// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace backplane::nccl {
namespace {

constexpr int64_t kFailureCheckInterval = 50'000'000;  // nanoseconds
constexpr int64_t kEventCheckInterval = 100'000;       // nanoseconds
constexpr size_t kMaxCopies = 64;                      // in the stream; a full stream would block the poller

// Only empty messages are eager.
constexpr sdk::Messenger::Limits kLimits{.eager = 0};

class MessageWork final : public sdk::Work {
 public:
  MessageWork(const Channel::Config& config, const GroupFailure& failure, std::shared_ptr<MessageCompletion> done)
      : c_(config), failure_(failure), done_(std::move(done)) {}

  const std::shared_ptr<MessageCompletion>& done() const { return done_; }
  // False: the operation is done.
  bool attach(std::unique_ptr<sdk::CompletionWork> operation) {
    operation_ = std::move(operation);
    return operation_ != nullptr;
  }

  // Ends with the group, even if its device does not stop.
  bool wait(int64_t timeout_ns) override {
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    for (;;) {
      const int64_t left = deadline.left_ns();
      if (done_->wait(left < 0 ? kFailureCheckInterval : std::min(left, kFailureCheckInterval))) return true;
      if (failure_.is_set() && failure_.await_device_stopped(0)) done_->fail(failure_.cause());
      if (deadline.passed()) return done_->wait(0);
    }
  }
  void cancel() noexcept override { operation_->cancel(); }
  // Polls for the event, because nothing notifies when a message enters its stream.
  bool wait_on_stream(void* stream, int64_t timeout_ns) override {
    if (done_->is_host) throw sdk::Failure(BP_UNSUPPORTED, "nccl: a message in host memory does not end in a stream");
    const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
    for (;;) {
      if (wait(0)) return true;
      if (const std::shared_ptr<const Event> event = done_->event()) {
        const OnDevice here(c_.api, c_.device);
        check(c_.api, c_.api.cuda.stream_wait_event(static_cast<cudaStream_t>(stream), event->get(), 0),
              "making a stream wait for a message");
        return true;
      }
      if (deadline.passed()) return false;
      if (done_->wait(kEventCheckInterval)) return true;
    }
  }

 private:
  const Channel::Config& c_;
  const GroupFailure& failure_;
  const std::shared_ptr<MessageCompletion> done_;
  std::unique_ptr<sdk::CompletionWork> operation_;
};

[[noreturn]] void refuse_frame(int32_t peer, const std::string& what) {
  throw sdk::Failure(BP_PEER_LOST, "rank " + std::to_string(peer) + " sent a malformed frame: " + what, peer);
}

std::shared_ptr<MessageCompletion> completion_of(const std::shared_ptr<sdk::Completion>& completion) {
  return std::static_pointer_cast<MessageCompletion>(completion);
}

}  // namespace

Messages::Messages(const Channel::Config& config, int32_t rank, int32_t world_size, GroupFailure& failure,
                   Transport& transport, std::function<void()> wake)
    : c_(config),
      rank_(rank),
      failure_(failure),
      transport_(transport),
      wake_(std::move(wake)),
      messenger_(
          rank, world_size,
          [this](int32_t) {
            has_frames_.store(true);
            wake_();
          },
          kLimits,
          [this](int32_t peer, uint64_t bytes, const sdk::Receive& receive) {
            this->receive(peer, {receive.data, bytes, completion_of(receive.received), nullptr});
          }),
      peers_(static_cast<size_t>(world_size)),
      copy_stream_(config.api, config.device) {}

std::unique_ptr<sdk::Work> Messages::submit(const bp_op& op) {
  const bp_buffer& buffer = op.kind == BP_SEND ? op.input : op.output;
  const uint64_t bytes = buffer.count * bp_dtype_size(op.dtype);
  const bool is_host = buffer.memory == BP_HOST;
  std::unique_ptr<MessageWork> work;
  // Allocates before the operation becomes visible to others: after BP_RESOURCE the caller frees its buffer.
  try {
    auto done = std::make_shared<MessageCompletion>(is_host, is_host || bytes == 0 ? nullptr : event_of(op));
    work = std::make_unique<MessageWork>(c_, failure_, std::move(done));
  } catch (...) {
    if (op.message != nullptr) messenger_.drop(op.message);
    throw;
  }
  const bool is_pending = work->attach(
      op.kind == BP_SEND
          ? messenger_.send(op.peer, op.tag, buffer.data, bytes, work->done())
          : messenger_.recv({op.peer, op.tag, buffer.data, bytes, op.result, work->done(), 0, false}, op.message));
  return is_pending ? std::move(work) : nullptr;
}

// An event after the current work of the caller's stream. Messages of a batch share it, because nothing is added to the
// stream between them. Calls CUDA without the lock: a full stream blocks the call, and the thread that would empty the
// stream may need the lock.
std::shared_ptr<const Event> Messages::event_of(const bp_op& op) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): of BP_NO_STREAM
  if (op.stream == BP_NO_STREAM) return nullptr;
  const Batch here = {std::this_thread::get_id(), op.stream, op.seq, nullptr};
  std::shared_ptr<const Event> event = take_batch(here);
  if (!event) {
    const OnDevice on_device(c_.api, c_.device);
    event = std::make_shared<const Event>(c_.pool, static_cast<cudaStream_t>(op.stream));
  }
  if ((op.flags & BP_OP_MORE) != 0) {
    const std::lock_guard lock(batch_mutex_);
    batch_ = {here.thread, here.stream, here.next + 1, event};
  }
  return event;
}

// The event of the batch that continues here, or null.
std::shared_ptr<const Event> Messages::take_batch(const Batch& here) {
  const std::lock_guard lock(batch_mutex_);
  const bool continues = batch_.thread == here.thread && batch_.stream == here.stream && batch_.next == here.next;
  std::shared_ptr<const Event> event = std::exchange(batch_.event, nullptr);
  return continues ? event : nullptr;
}

void Messages::on_frame(int32_t peer, const Frame& frame) {
  try {
    if (frame.kind == FrameKind::kMessage) return messenger_.arrived(peer, frame.head, {});
    if (frame.kind != FrameKind::kChannel) {
      refuse_frame(peer, "kind " + std::to_string(static_cast<uint32_t>(frame.kind)) + " is unknown");
    }
    if (at(peer).receiving) refuse_frame(peer, "it opens a second channel");
  } catch (const sdk::Failure& malformed) {
    throw sdk::Failure(
        BP_INTERNAL,
        std::string("nccl: ") + malformed.what() + "; run the same version with the same options on all ranks", peer);
  }
  at(peer).receiving = std::make_unique<Channel>(c_, false, frame.channel);
}

bool Messages::pass_new_frames() {
  if (!has_frames_.exchange(false)) return false;
  pass_frames();
  return true;
}

void Messages::pass_frames() {
  for (int32_t peer = 0; peer < static_cast<int32_t>(peers_.size()); ++peer) {
    while (messenger_.next(peer, frame_)) pass(peer);
  }
}

// Passes frame_ to the transport, and its data to the channel.
void Messages::pass(int32_t peer) {
  const bool has_data = frame_.buffer && !frame_.data.empty();
  if (peer == rank_) {
    messenger_.arrived(rank_, frame_.head, {});
  } else {
    std::unique_ptr<Channel>& channel = at(peer).sending;
    if (has_data && !channel) {
      const ncclUniqueId id = Communicator::new_id(c_.api);
      channel = std::make_unique<Channel>(c_, true, id);
      transport_.send(peer, {.kind = FrameKind::kChannel, .channel = id});
    }
    transport_.send(peer, {.kind = FrameKind::kMessage, .head = frame_.head});
    if (has_data) channel->add(outgoing());
  }
  frame_ = {};  // ends the send, unless a channel or copy has taken the buffer
}

Transfer Messages::outgoing() const {
  auto* const data = const_cast<std::byte*>(frame_.data.data());
  return {data, frame_.data.size(), completion_of(frame_.buffer->sent()), frame_.buffer};
}

// The data of a message begins to arrive.
void Messages::receive(int32_t peer, Transfer transfer) {
  if (transfer.bytes == 0) return transfer.done->finish();
  if (peer == rank_) return copy_to_self(std::move(transfer));
  if (!at(peer).receiving) {
    refuse_frame(peer, "it brings data before a channel is open");
  }
  at(peer).receiving->add(std::move(transfer));
}

void Messages::copy_to_self(Transfer to) {
  Transfer from = outgoing();
  if (from.done->is_host && to.done->is_host) {
    std::memcpy(to.data, from.data, from.bytes);
    return to.done->finish();
  }
  copies_.emplace_back();
  copies_.back().from = std::move(from);
  copies_.back().to = std::move(to);
}

bool Messages::progress_copies() {
  if (copies_.empty()) return false;
  const OnDevice here(c_.api, c_.device);
  for (size_t i = 0; i < std::min(copies_.size(), kMaxCopies); ++i) {
    if (!copies_[i].end) start(copies_[i]);
  }
  return std::erase_if(copies_, [](const Copy& copy) {
           if (!copy.end || !copy.end->passed()) return false;
           if (copy.to.done->is_host) std::memcpy(copy.to.data, copy.pinned.data(), copy.to.bytes);
           copy.from.done->finish();
           copy.to.done->finish();
           return true;
         }) > 0;
}

void Messages::start(Copy& copy) {
  const auto& [from, to, pinned, end] = copy;
  for (const Transfer* const each : {&from, &to}) {
    const Event* const after = each->done->after.get();
    if (after != nullptr) {
      check(c_.api, c_.api.cuda.stream_wait_event(copy_stream_.get(), after->get(), 0), "ordering a message");
    }
  }
  const bool from_host = from.done->is_host;
  const bool to_host = to.done->is_host;
  if (from_host || to_host) copy.pinned = PooledMemory(c_.pool, from.bytes, MemoryKind::kHost);
  if (from_host) std::memcpy(pinned.data(), from.data, from.bytes);
  check(c_.api,
        c_.api.cuda.memcpy_async(to_host ? pinned.data() : to.data, from_host ? pinned.data() : from.data, from.bytes,
                                 cudaMemcpyDefault, copy_stream_.get()),
        "copying a message of this rank to itself");
  copy.end = std::make_shared<const Event>(c_.pool, copy_stream_.get());
  for (const Transfer* const each : {&from, &to}) {
    if (!each->done->is_host) each->done->set_event(copy.end);
  }
}

void Messages::each_channel(const std::function<void(int32_t peer, Channel& channel)>& body) const {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].sending) body(static_cast<int32_t>(peer), *peers_[peer].sending);
    if (peers_[peer].receiving) body(static_cast<int32_t>(peer), *peers_[peer].receiving);
  }
}

bool Messages::progress() {
  bool moved = pass_new_frames();
  moved |= progress_copies();
  each_channel([this, &moved](int32_t peer, Channel& channel) { moved |= progress_channel(peer, channel); });
  return moved;
}

bool Messages::progress_channel(int32_t rank, Channel& channel) {
  if (!channel.busy()) return false;
  const Peer& peer = at(rank);
  try {
    if (channel.progress()) return true;
  } catch (const sdk::Failure& why) {
    if (peer.lost) throw sdk::Failure(*peer.lost);  // NCCL reports a consequence of it
    throw sdk::Failure(why.status(), std::string(why.what()) + " (a message with rank " + std::to_string(rank) + ")",
                       why.status() == BP_PEER_LOST ? rank : -1, why.native_code());
  }
  const auto since = peer.lost ? channel.waiting_since() : std::nullopt;
  if (since && Clock::now() > std::max(peer.lost_at, *since) + peer.grace) throw sdk::Failure(*peer.lost);
  return false;
}

bool Messages::busy() const {
  bool is_busy = !copies_.empty();
  each_channel([&is_busy](int32_t, Channel& channel) { is_busy |= channel.busy(); });
  return is_busy;
}

void Messages::lost(int32_t peer, const sdk::Failure& why, std::chrono::nanoseconds grace) {
  Peer& lost = at(peer);
  if (lost.lost) return;
  lost.lost.emplace(why);
  lost.lost_at = Clock::now();
  lost.grace = grace;
  messenger_.lost(peer, why);
}

void Messages::collect_finished() noexcept {
  each_channel([](int32_t, Channel& channel) { channel.collect_finished(); });
}

void Messages::abort() noexcept {
  each_channel([](int32_t, Channel& channel) { channel.abort(); });
}

bool Messages::is_idle() noexcept {
  bool is_idle = copies_.empty() || copy_stream_.is_idle(c_.pool, last_);
  each_channel([&is_idle](int32_t, Channel& channel) { is_idle = is_idle && channel.is_idle(); });
  return is_idle;
}

void Messages::fail(const sdk::Failure& why) noexcept {
  if (frame_.buffer) frame_.buffer->sent()->fail(why);
  for (const Copy& copy : copies_) {
    copy.from.done->fail(why);
    copy.to.done->fail(why);
  }
  each_channel([&why](int32_t, Channel& channel) { channel.fail(why); });
  messenger_.abort(why);
  copies_.clear();
  frame_ = {};
}

void Messages::close(int64_t timeout_ns) {
  const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
  each_channel([&deadline](int32_t, Channel& channel) { channel.close(deadline.left_ns()); });
}

}  // namespace backplane::nccl
