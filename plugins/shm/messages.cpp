// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <cstring>
#include <string>

#include "memory.hpp"

namespace backplane::shm {

class MessageWork final : public sdk::Work {
 public:
  explicit MessageWork(Messages& messages) : messages_(messages) {}
  ~MessageWork() override {
    if (operation.is_pending()) cancel();                             // the core releases only what is over
    if (operation.is_noticed) const Messages::Turn given(messages_);  // by who ended it, with the lock
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

Messages::Messages(int32_t rank, int32_t world_size, const View* view, Peers* peers, const Pools* pools,
                   Waiting& waiting, CrossMemory* cross, std::function<void(const std::string&)> log)
    : rank_(rank),
      world_size_(world_size),
      view_(view),
      members_(peers),
      pools_(pools),
      waiting_(waiting),
      cross_(cross),
      log_(std::move(log)),
      peers_(static_cast<size_t>(world_size)),
      trial_(cross == nullptr ? Cma::kOff : cross->use()),
      helper_(
          waiting, [this] { move_on(Look::kFull); },
          [this] {
            sdk::guarded(nullptr, [this] {
              const Turn turn(*this);
              end_noticed();
              return BP_OK;
            });
          }) {
  for (int32_t peer = 0; peer < world_size; ++peer) {
    if (peer == rank) continue;
    at(peer).out = Outbox(view->channel(peer, rank), view->opened(peer, rank), peers->publishes_lightly());
    at(peer).in = Inbox(view->channel(rank, peer), view->opened(rank, peer), peers->publishes_lightly());
  }
}

std::unique_ptr<sdk::Work> Messages::submit(const bp_op& op) {
  waiting_.check();
  if ((op.flags & BP_OP_SYNC) != 0) {
    Operation operation;
    describe(op, operation);
    const bool may_come = op.timeout_ns != 0 && !operation.is_send && op.message == nullptr;
    if (may_come && waiting_.gives_turns() && catch_in_turns(operation)) return nullptr;
    if (start(operation, op.message) || wait(operation, op.timeout_ns)) return nullptr;
    cancel(operation, sdk::Failure(BP_TIMEOUT,
                                   operation.is_send ? "no receive for this message within the time allowed"
                                                     : "no message for this receive within the time allowed",
                                   operation.peer));
    wait(operation, 0);  // throws, unless it ended just before
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
  const Turn turn(*this);
  if (!operation.is_pending()) return;
  helper_.begin();
  operation.is_async = true;
}

// `message`: of a receive, the one that was probed, or null. True: it is done. Throws if it cannot start, and then has
// left no trace.
bool Messages::start(Operation& operation, bp_message* message) {
  {
    const Turn turn(*this);
    if (operation.is_send) {
      start_send(operation);
    } else if (message != nullptr) {
      receive_held(operation, message);
    } else {
      start_receive(operation);
    }
  }
  return !operation.is_pending() && wait(operation, 0);
}

void Messages::start_send(Operation& send) {
  if (send.peer == rank_) return send_to_self(send);
  Peer& peer = at(send.peer);
  if (members_->departures() != departures_) see_departures();
  if (peer.gone) throw sdk::Failure(*peer.gone);
  open_channel(send.peer);
  if (peer.controls.empty() && peer.sends.empty() && put(peer, send)) {
    members_->wake(send.peer);
    return;
  }
  send.where = Operation::Where::kQueued;
  peer.sends.push_back(&send);
}

// Throws BP_RESOURCE.
void Messages::open_channel(int32_t rank) {
  Outbox& out = at(rank).out;
  if (out.is_open()) return;
  Channel& channel = view_->channel(rank, rank_);
  provide(reinterpret_cast<std::byte*>(&channel), sizeof channel, "messages");
  out.open();
}

// True: the channel has it, or its announcement.
bool Messages::put(Peer& peer, Operation& send) {
  if (!send.has_credit) send.has_credit = peer.out.take_credit(send.size);
  if (!send.has_credit) {
    const uint64_t id = next_id_ + 1;
    uint64_t place = pools_ == nullptr || send.size == 0 ? 0 : pools_->place_of(send.data, send.size);
    if (place == 0 && cross_ != nullptr && send.size > kEagerLimit) place = place_in_process(send.data);
    if (!peer.out.put_control(Kind::kAnnounce, send.tag, id, send.size, place)) return false;
    send.where = Operation::Where::kAnnounced;
    send.id = next_id_ = id;
    peer.announced.emplace(id, Outgoing{&send, 0, place != 0});
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
  message.form = Message::Form::kLocal;
  message.sender = &send;
  matcher_.add(std::move(message));
  send.where = Operation::Where::kLocal;
}

// With more ranks than processors: lets others have theirs between two looks. True: it is done.
bool Messages::catch_in_turns(Operation& receive) {
  Caught caught = Caught::kNothing;
  for (int i = 0; i < kTurns && caught == Caught::kNothing; ++i) {
    const bool is_brief = i == 0 || waiting_.give_turn();
    const Turn turn(*this);
    if (i == 0 && !may_catch()) return false;
    caught = catch_next(receive, 1);
    if (!is_brief) break;
  }
  return caught == Caught::kIt && wait(receive, 0);
}

void Messages::start_receive(Operation& receive) {
  if (waiting_.polls() && may_catch() && catch_next(receive, kLooksAtOnce) == Caught::kIt) return;
  progress();
  receive.order = ++next_order_;
  place(receive);
}

// Gives a receive the oldest message that is there, or lets it wait for one.
void Messages::place(Operation& receive) {
  const std::optional<Message> message = matcher_.take_message(receive.peer, receive.tag);
  if (message) return give(*message, receive);
  if (const sdk::Failure* const why = reason_to_fail(receive.peer)) return fail(receive, *why);
  receive.where = Operation::Where::kPosted;
  matcher_.post(receive);
}

void Messages::give(const Message& message, Operation& receive) {
  switch (message.form) {
    case Message::Form::kWhole:
      at(message.source).in.give_credit(message.size);
      return deliver(receive, message.source, message.tag, message.bytes.data(), message.size);
    case Message::Form::kAnnounced:
      return accept(message, receive);
    case Message::Form::kLocal:
      deliver(receive, rank_, message.tag, message.sender->data, message.size);
      return finish(*message.sender);
    case Message::Form::kComing:
      return resume(message, receive);
  }
}

// Why nothing can come from there any more, or null.
const sdk::Failure* Messages::reason_to_fail(int32_t source) {
  const bool any = source == BP_ANY_SOURCE;
  if (any && (world_size_ == 1 || gone_ < world_size_ - 1)) return nullptr;
  const std::optional<sdk::Failure>& gone = at(any ? (rank_ == 0 ? 1 : 0) : source).gone;
  return gone ? &*gone : nullptr;
}

bool Messages::wait(Operation& operation, int64_t timeout_ns) {
  if (operation.is_pending()) {
    Limit limit(timeout_ns);
    const End end = waiting_.until(limit, [this, &operation](Look) { return look(operation); });
    if (end == End::kAborted) {
      try {
        waiting_.check();
      } catch (const sdk::Failure& why) {
        cancel(operation, why);
      }
    }
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

bool Messages::look(const Operation& operation) {
  if (!operation.is_pending()) return true;
  const Turn turn(*this);
  const int most = waiting_.polls() ? 32 : 1;
  for (int i = 0; i < most && !waiting_.aborted(); ++i) {
    progress();
    if (!operation.is_pending()) return true;
    if (lock_.is_wanted()) break;
    relax();
  }
  return false;
}

void Messages::move_on(Look look) {
  if (world_size_ == 1) return;
  if (look == Look::kFull) {
    const Turn turn(*this);
    return progress();
  }
  if (!lock_.try_lock()) return;
  const Turn turn(*this, std::adopt_lock);
  progress();
}

void Messages::cancel(Operation& operation, const sdk::Failure& why) {
  const Turn turn(*this);
  give_up(operation, why);
}

void Messages::give_up(Operation& operation, const sdk::Failure& why) {
  if (!operation.is_pending()) return;
  switch (operation.where) {
    case Operation::Where::kPosted:
      matcher_.remove(operation);
      break;
    case Operation::Where::kComing:
      leave_to_others(operation);
      break;
    default:
      cancel_send(operation);
  }
  fail(operation, why);
}

void Messages::cancel_send(Operation& send) {
  if (send.where == Operation::Where::kLocal) {
    const auto is_it = [&send](const Message& each) { return each.sender == &send; };
    lose_held(is_it, sdk::taken_back());
    return matcher_.remove_messages(is_it);
  }
  Peer& peer = at(send.peer);
  if (send.where == Operation::Where::kQueued) {
    std::erase(peer.sends, &send);
    if (send.has_credit) peer.out.return_credit(send.size);
  } else if (send.where == Operation::Where::kAnnounced) {
    if (peer.announced.at(send.id).is_lent) peer.out.revoke();
    peer.announced.erase(send.id);
    std::erase(peer.wanted, send.id);
    send_control(send.peer, {Kind::kWithdraw, send.tag, send.id, 0});
  }
}

// A receive gives up amid its message, which goes on coming: to the next receive that matches, or, if there is no
// memory to keep it, to nobody.
void Messages::leave_to_others(Operation& receive) {
  Incoming& incoming = at(receive.source).coming.at(receive.id);
  incoming.receive = nullptr;
  incoming.is_unwanted = true;
  if (waiting_.aborted()) return;
  Message message;
  message.form = Message::Form::kComing;
  message.source = receive.source;
  message.tag = incoming.tag;
  message.size = incoming.size;
  message.id = receive.id;
  try {
    auto stash = std::make_unique_for_overwrite<std::byte[]>(incoming.size);
    matcher_.add_oldest(std::move(message));
    if (incoming.offset > 0) std::memcpy(stash.get(), receive.data, incoming.offset);
    incoming.stash = std::move(stash);
    incoming.is_unwanted = false;
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

// Its last word: from now on it belongs to who waits for it. Sleepers look after a fence of their own if they can. Who
// releases it waits until the notice is given (~MessageWork).
void Messages::settle(Operation& operation, Operation::Status status) {
  has_finished_ = true;
  if (operation.is_noticed) return settle_and_tell(operation, status);
  const bool lightly = members_ != nullptr && members_->publishes_lightly();
  operation.status.store(status, lightly ? std::memory_order_release : std::memory_order_seq_cst);
}

void Messages::finish(Operation& operation) {
  operation.where = Operation::Where::kNowhere;
  if (operation.is_async) helper_.end();
  settle(operation, Operation::Status::kDone);
}

void Messages::fail(Operation& operation, const sdk::Failure& why) {
  operation.where = Operation::Where::kNowhere;
  operation.failure.emplace(why);
  if (operation.is_async) helper_.end();
  settle(operation, Operation::Status::kFailed);
}

}  // namespace backplane::shm
