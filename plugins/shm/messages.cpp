// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <cstring>
#include <string>

#include "backplane/sdk/peer_failures.hpp"
#include "memory.hpp"

namespace backplane::shm {

class MessageWork final : public sdk::Work {
 public:
  explicit MessageWork(Messages& messages) : messages_(messages) {}
  ~MessageWork() override {
    if (operation.is_pending()) cancel();                             // the core releases only completed works
    if (operation.has_notice) const Messages::Lock given(messages_);  // the notice is given under the lock
  }

  bool wait(int64_t timeout_ns) override { return messages_.wait(operation, timeout_ns); }
  void cancel() noexcept override {
    sdk::guarded(nullptr, [this] {
      messages_.cancel(operation, sdk::Failure(BP_CANCELLED, "cancelled by this rank"));
      return BP_OK;
    });
  }

  bool on_end(sdk::Notice notice) override {
    messages_.on_end(operation, notice);
    return true;
  }

  Operation operation;

 private:
  Messages& messages_;
};

namespace {

void describe(const bp_op& op, Operation& operation) {
  operation.is_send = op.kind == BP_SEND;
  const bp_buffer& buffer = operation.is_send ? op.input : op.output;
  operation.peer = op.peer;
  operation.tag = op.tag;
  operation.data = static_cast<std::byte*>(buffer.data);
  operation.size = buffer.count * bp_dtype_size(op.dtype);
  operation.result = operation.is_send ? nullptr : op.result;
}

}  // namespace

Messages::Messages(int32_t rank, int32_t world_size, const View* view, Peers* peers, const Pools* pools, Waiter& waiter,
                   CrossMemory* cross, std::function<void(const std::string&)> log)
    : rank_(rank),
      world_size_(world_size),
      view_(view),
      members_(peers),
      pools_(pools),
      waiter_(waiter),
      cross_(cross),
      log_(std::move(log)),
      peers_(static_cast<size_t>(world_size)),
      tuner_(cross == nullptr ? Cma::kOff : cross->use()),
      progress_thread_(
          waiter, [this] { poll(Poll::kFull); },
          [this] {
            sdk::guarded(nullptr, [this] {
              const Lock lock(*this);
              fail_all_with_notice();
              return BP_OK;
            });
          }) {
  for (int32_t peer = 0; peer < world_size; ++peer) {
    if (peer == rank) continue;
    const bool membarrier = peers->uses_membarrier();
    at(peer).out = Outbox(view->channel(peer, rank), view->ring(peer, rank), view->opened(peer, rank), membarrier);
    at(peer).in = Inbox(view->channel(rank, peer), view->ring(rank, peer), view->opened(rank, peer), membarrier);
  }
}

std::unique_ptr<sdk::Work> Messages::submit(const bp_op& op) {
  waiter_.check();
  if ((op.flags & BP_OP_SYNC) != 0) {
    Operation operation;
    describe(op, operation);
    const bool may_come = op.timeout_ns != 0 && !operation.is_send && op.message == nullptr;
    if (may_come && waiter_.only_yields() && receive_directly_yielding(operation)) return nullptr;
    LazyDeadline deadline(op.timeout_ns, true);
    if (start(operation, op.message) || wait(operation, deadline)) return nullptr;
    cancel(operation, sdk::timed_out(op));
    wait(operation, 0);  // throws unless the operation has just completed
    return nullptr;
  }
  std::unique_ptr<MessageWork> work;
  try {
    work = std::make_unique<MessageWork>(*this);
  } catch (const std::bad_alloc&) {
    if (op.message != nullptr) drop(op.message);
    throw;
  }
  describe(op, work->operation);
  if (start(work->operation, op.message)) return nullptr;
  leave_in_flight(work->operation);
  return work;
}

void Messages::leave_in_flight(Operation& operation) {
  if (world_size_ == 1) return;
  const Lock lock(*this);
  if (!operation.is_pending()) return;
  progress_thread_.operation_started();
  operation.is_async = true;
}

// `message`: the probed message of a receive, or null. Returns true if done. If it throws, it has had no effect.
bool Messages::start(Operation& operation, bp_message* message) {
  {
    const Lock lock(*this);
    if (operation.is_send) {
      start_send(operation);
    } else if (message != nullptr) {
      receive_probed(operation, message);
    } else {
      start_receive(operation);
    }
  }
  return !operation.is_pending() && wait(operation, 0);
}

void Messages::start_send(Operation& send) {
  if (send.peer == rank_) return send_to_self(send);
  Peer& peer = at(send.peer);
  if (members_->departures() != departures_) handle_departures();
  if (peer.lost) throw sdk::Failure(*peer.lost);
  open_channel(send.peer, true);
  if (peer.controls.empty() && peer.sends.empty() && put(peer, send)) {
    members_->wake(send.peer);
    return;
  }
  send.stage = Operation::Stage::kQueued;
  peer.sends.push_back(&send);
}

// Takes the pages that this rank writes to: heads, and for sends the ring. Throws BP_RESOURCE.
void Messages::open_channel(int32_t rank, bool to_send) {
  Outbox& out = at(rank).out;
  if (to_send && !out.has_ring()) {
    const Ring ring = view_->ring(rank, rank_);
    populate(ring.data, ring.size, "messages");
    out.set_has_ring();
  }
  if (out.is_open()) return;
  Channel& channel = view_->channel(rank, rank_);
  populate(reinterpret_cast<std::byte*>(&channel), sizeof channel, "messages");
  out.open();
}

// The answer to an announcement costs ranks that do not spin two time slices, which take longer than a second copy.
bool Messages::may_be_eager(const Operation& send) const {
  if (send.size <= kEagerLimit) return true;
  const bool must_be_read = cross_ != nullptr && cross_->use() == Cma::kOn;
  if (waiter_.spins() || must_be_read || send.size > kMaxEager) return false;
  return pools_ == nullptr || pools_->location_of(send.data, send.size) == 0;  // otherwise it is read in place
}

// Returns true if the message, or its announcement, is in the channel.
bool Messages::put(Peer& peer, Operation& send) {
  if (!send.has_credit) send.has_credit = may_be_eager(send) && peer.out.take_credit(send.size);
  if (!send.has_credit) {
    const uint64_t id = next_id_ + 1;
    uint64_t location = pools_ == nullptr || send.size == 0 ? 0 : pools_->location_of(send.data, send.size);
    if (location == 0 && cross_ != nullptr && send.size > kEagerLimit) location = location_in_process(send.data);
    if (!peer.out.put_control(Kind::kAnnounce, send.tag, id, send.size, location)) return false;
    send.stage = Operation::Stage::kAnnounced;
    send.id = next_id_ = id;
    peer.announced.emplace(id, Outgoing{&send, 0, location != 0});
    return true;
  }
  const bool done = send.size <= kHeadData ? peer.out.put_inline(send.tag, send.data, send.size)
                                           : peer.out.put_piece(Kind::kEager, send.tag, 0, send.data, send.size);
  if (done) finish(send);
  return done;
}

void Messages::send_to_self(Operation& send) {
  if (Operation* const receive = matcher_.take_receive(rank_, send.tag); receive != nullptr) {
    deliver(*receive, rank_, send.tag, send.data, send.size);
    return finish(send);
  }
  Message message;
  message.source = rank_;
  message.tag = send.tag;
  message.size = send.size;
  message.state = Message::State::kLocal;
  message.sender = &send;
  matcher_.add(std::move(message));
  send.stage = Operation::Stage::kLocal;
}

// For more ranks than processors: yields between polls. Returns true if done.
bool Messages::receive_directly_yielding(Operation& receive) {
  DirectReceive outcome = DirectReceive::kNone;
  for (int i = 0; i < kMaxYields && outcome == DirectReceive::kNone; ++i) {
    const bool is_brief = i == 0 || waiter_.yield_once();
    const Lock lock(*this);
    if (i == 0 && !may_receive_directly()) return false;
    outcome = receive_directly(receive, 1);
    if (!is_brief) break;
  }
  return outcome == DirectReceive::kReceived && wait(receive, 0);
}

void Messages::start_receive(Operation& receive) {
  if (waiter_.spins() && may_receive_directly() && receive_directly(receive, kSpinPolls) == DirectReceive::kReceived)
    return;
  progress();
  receive.order = ++next_order_;
  match_or_post(receive);
}

// Matches a receive with the oldest message, or posts it.
void Messages::match_or_post(Operation& receive) {
  const std::optional<Message> message = matcher_.take_message(receive.peer, receive.tag);
  if (message) return assign(*message, receive);
  if (const sdk::Failure* const why = reason_to_fail(receive.peer)) return fail(receive, *why);
  receive.stage = Operation::Stage::kPosted;
  matcher_.post(receive);
}

void Messages::assign(const Message& message, Operation& receive) {
  switch (message.state) {
    case Message::State::kComplete:
      at(message.source).in.return_credits(message.size);
      return deliver(receive, message.source, message.tag, message.bytes.data(), message.size);
    case Message::State::kAnnounced:
      return accept(message, receive);
    case Message::State::kLocal:
      deliver(receive, rank_, message.tag, message.sender->data, message.size);
      return finish(*message.sender);
    case Message::State::kIncoming:
      return resume(message, receive);
  }
}

// Why no message can arrive from there any more, or null.
const sdk::Failure* Messages::reason_to_fail(int32_t source) {
  const bool any = source == BP_ANY_SOURCE;
  if (any && (world_size_ == 1 || lost_count_ < world_size_ - 1)) return nullptr;
  const std::optional<sdk::Failure>& lost = at(any ? (rank_ == 0 ? 1 : 0) : source).lost;
  return lost ? &*lost : nullptr;
}

bool Messages::wait(Operation& operation, int64_t timeout_ns) {
  LazyDeadline deadline(timeout_ns);
  return wait(operation, deadline);
}

bool Messages::wait(Operation& operation, LazyDeadline& deadline) {
  if (operation.is_pending()) {
    const WaitResult end = waiter_.until(deadline, [this, &operation](Poll) { return mode(operation); });
    if (end == WaitResult::kAborted) {
      try {
        waiter_.check();
      } catch (const sdk::Failure& why) {
        cancel(operation, why);
      }
    }
    if (end == WaitResult::kInterrupted) cancel(operation, sdk::Interruption::failure());
  }
  switch (operation.status.load()) {
    case Operation::Status::kPending:
      return false;
    case Operation::Status::kDone:
      return true;
    case Operation::Status::kFailed:
      throw sdk::Failure(*operation.failure);
  }
  return false;
}

bool Messages::mode(const Operation& operation) {
  if (!operation.is_pending()) return true;
  const Lock lock(*this);
  const int max_size = waiter_.spins() ? 32 : 1;
  for (int i = 0; i < max_size && !waiter_.aborted(); ++i) {
    progress();
    if (!operation.is_pending()) return true;
    if (lock_.is_contended()) break;
    relax();
  }
  return false;
}

void Messages::poll(Poll mode) {
  if (world_size_ == 1) return;
  if (mode == Poll::kFull) {
    const Lock lock(*this);
    return progress();
  }
  if (!lock_.try_lock()) return;
  const Lock lock(*this, std::adopt_lock);
  progress();
}

void Messages::cancel(Operation& operation, const sdk::Failure& why) {
  const Lock lock(*this);
  give_up(operation, why);
}

void Messages::give_up(Operation& operation, const sdk::Failure& why) {
  if (!operation.is_pending()) return;
  switch (operation.stage) {
    case Operation::Stage::kPosted:
      matcher_.remove(operation);
      break;
    case Operation::Stage::kIncoming:
      requeue_incoming(operation);
      break;
    default:
      cancel_send(operation);
  }
  fail(operation, why);
}

void Messages::cancel_send(Operation& send) {
  if (send.stage == Operation::Stage::kLocal) {
    const auto is_it = [&send](const Message& each) { return each.sender == &send; };
    fail_probed(is_it, sdk::taken_back());
    return matcher_.remove_messages(is_it);
  }
  Peer& peer = at(send.peer);
  if (send.stage == Operation::Stage::kQueued) {
    std::erase(peer.sends, &send);
    if (send.has_credit) peer.out.return_credit(send.size);
  } else if (send.stage == Operation::Stage::kAnnounced) {
    if (peer.announced.at(send.id).is_exposed) peer.out.revoke();
    peer.announced.erase(send.id);
    std::erase(peer.ready_ids, send.id);
    send_control(send.peer, {Kind::kWithdraw, send.tag, send.id, 0});
  }
}

// A receive is cancelled while its message arrives. The message goes to the next matching receive, or is discarded if
// there is no memory to stash it.
void Messages::requeue_incoming(Operation& receive) {
  Incoming& incoming = at(receive.source).incoming_by_id.at(receive.id);
  incoming.receive = nullptr;
  incoming.is_discarded = true;
  if (waiter_.aborted()) return;
  Message message;
  message.state = Message::State::kIncoming;
  message.source = receive.source;
  message.tag = incoming.tag;
  message.size = incoming.size;
  message.id = receive.id;
  try {
    auto stash = std::make_unique_for_overwrite<std::byte[]>(incoming.size);
    matcher_.add_oldest(std::move(message));
    if (incoming.offset > 0) std::memcpy(stash.get(), receive.data, incoming.offset);
    incoming.stash = std::move(stash);
    incoming.is_discarded = false;
  } catch (const std::bad_alloc&) {
  }
}

bool Messages::fits(Operation& receive, int32_t source, uint64_t tag, uint64_t size) {
  if (receive.result != nullptr) {
    receive.result->source = source;
    receive.result->bytes = size;
    receive.result->tag = tag;
  }
  if (size <= receive.size) return true;
  fail(receive, sdk::Failure(BP_INVALID,
                             "a message of " + std::to_string(size) + " bytes from rank " + std::to_string(source) +
                                 " does not fit the receive buffer of " + std::to_string(receive.size) + " bytes",
                             source));
  return false;
}

void Messages::deliver(Operation& receive, int32_t source, uint64_t tag, const std::byte* data, uint64_t size) {
  if (!fits(receive, source, tag, size)) return;
  if (size > 0) std::memcpy(receive.data, data, size);
  finish(receive);
}

// Final access: the operation belongs to its waiter afterwards. With membarrier, sleepers execute the fence. The work's
// destructor waits until its notice has been given (~MessageWork).
void Messages::set_final_status(Operation& operation, Operation::Status status) {
  has_finished_ = true;
  if (operation.has_notice) return complete_with_notice(operation, status);
  const bool membarrier = members_ != nullptr && members_->uses_membarrier();
  operation.status.store(status, membarrier ? std::memory_order_release : std::memory_order_seq_cst);
}

void Messages::finish(Operation& operation) {
  operation.stage = Operation::Stage::kNone;
  if (operation.is_async) progress_thread_.operation_ended();
  set_final_status(operation, Operation::Status::kDone);
}

void Messages::fail(Operation& operation, const sdk::Failure& why) {
  operation.stage = Operation::Stage::kNone;
  operation.failure.emplace(why);
  if (operation.is_async) progress_thread_.operation_ended();
  set_final_status(operation, Operation::Status::kFailed);
}

}  // namespace backplane::shm
