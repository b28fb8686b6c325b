// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include "backplane/sdk/peer_failures.hpp"

namespace backplane::shm {

// Holds the lock. On release wakes this rank's threads if an operation has completed.
class Messages::Lock {
 public:
  explicit Lock(Messages& messages) : messages_(messages) { messages_.lock_.lock(); }
  Lock(Messages& messages, std::adopt_lock_t) : messages_(messages) {}
  ~Lock() {
    const bool wake = messages_.completions_.take_wake();
    messages_.lock_.unlock();
    if (wake) messages_.waiter_.wake();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Messages& messages_;
};

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

constexpr int kMaxYields = 4;  // yields before the regular wait

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
                   CrossMemory* cross)
    : world_size_(world_size),
      waiter_(waiter),
      completions_(peers != nullptr && peers->uses_membarrier(), progress_thread_),
      in_place_(pools, cross),
      protocol_(rank, world_size, view, peers, waiter, lock_, in_place_, completions_),
      progress_thread_(
          waiter, [this] { poll(Poll::kFull); },
          [this] {
            sdk::guarded(nullptr, [this] {
              const Lock lock(*this);
              fail_all_with_notice();
              return BP_OK;
            });
          }) {}

std::unique_ptr<sdk::Work> Messages::submit(const bp_op& op) {
  waiter_.check();
  if ((op.flags & BP_OP_SYNC) != 0) {
    Operation operation;
    describe(op, operation);
    const bool may_come = op.timeout_ns != 0 && !operation.is_send && op.message == nullptr;
    if (may_come && waiter_.only_yields() && receive_yielding(operation)) return nullptr;
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
  if (operation.is_pending()) completions_.leave_in_flight(operation);
}

// `probed`: the probed message of a receive, or null. Returns true if done. If it throws, it has had no effect.
bool Messages::start(Operation& operation, const bp_message* probed) {
  {
    const Lock lock(*this);
    if (operation.is_send) {
      protocol_.start_send(operation);
    } else if (probed != nullptr) {
      protocol_.receive_probed(operation, probed);
    } else {
      protocol_.start_receive(operation);
    }
  }
  return !operation.is_pending() && wait(operation, 0);
}

// For more ranks than processors: yields between polls. Returns true if done.
bool Messages::receive_yielding(Operation& receive) {
  using DirectReceive = Protocol::DirectReceive;
  DirectReceive outcome = DirectReceive::kNone;
  for (int i = 0; i < kMaxYields && outcome == DirectReceive::kNone; ++i) {
    const bool is_brief = i == 0 || waiter_.yield_once();
    const Lock lock(*this);
    if (i == 0 && !protocol_.may_receive_directly()) return false;
    outcome = protocol_.receive_directly(receive, 1);
    if (!is_brief) break;
  }
  return outcome == DirectReceive::kReceived && wait(receive, 0);
}

bool Messages::wait(Operation& operation, int64_t timeout_ns) {
  LazyDeadline deadline(timeout_ns);
  return wait(operation, deadline);
}

bool Messages::wait(Operation& operation, LazyDeadline& deadline) {
  if (operation.is_pending()) {
    const WaitResult end = waiter_.until(deadline, [this, &operation](Poll) { return poll_for(operation); });
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

bool Messages::poll_for(const Operation& operation) {
  if (!operation.is_pending()) return true;
  const Lock lock(*this);
  const int polls = waiter_.spins() ? 2 : 1;
  for (int i = 0; i < polls && !waiter_.aborted(); ++i) {
    protocol_.progress();
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
    return protocol_.progress();
  }
  if (!lock_.try_lock()) return;
  const Lock lock(*this, std::adopt_lock);
  protocol_.progress();
}

void Messages::cancel(Operation& operation, const sdk::Failure& why) {
  const Lock lock(*this);
  protocol_.cancel(operation, why);
}

bp_message* Messages::probe(int32_t peer, uint64_t tag, bp_result& result) {
  waiter_.check();
  const Lock lock(*this);
  const Message* const message = protocol_.probe(peer, tag);
  if (message == nullptr) return nullptr;
  result.source = message->source;
  result.bytes = message->size;
  result.tag = message->tag;
  return reinterpret_cast<bp_message*>(const_cast<Message*>(message));
}

void Messages::drop(bp_message* message) noexcept {
  sdk::guarded(nullptr, [this, message] {  // out of memory: the sender waits until the group ends
    const Lock lock(*this);
    protocol_.drop(message);
    return BP_OK;
  });
}

// The progress thread completes the operation, even if the group was aborted before or is aborted later: both hold the
// lock.
void Messages::on_end(Operation& operation, sdk::Notice notice) {
  const Lock lock(*this);
  if (!operation.is_pending()) return notice.give();
  if (!operation.is_async) completions_.leave_in_flight(operation);  // in a group of one
  completions_.add_notice(operation, notice);
  if (waiter_.aborted()) fail_all_with_notice();
}

// Call after an abort.
void Messages::fail_all_with_notice() {
  try {
    waiter_.check();
  } catch (const sdk::Failure& why) {
    while (Operation* const operation = completions_.any_with_notice()) protocol_.cancel(*operation, why);
  }
}

}  // namespace backplane::shm
