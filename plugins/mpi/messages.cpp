// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace backplane::mpi {
namespace {

constexpr uint64_t kInternal = BP_BIT(kTagBits - 1);

class Send final : public Operation {
 public:
  Send(GroupState& group, const bp_op& op)
      : Operation(group, op.kind), comm_((op.tag & kInternal) != 0 ? group.internal : group.user) {
    const uint64_t bytes = op.input.count * bp_dtype_size(op.dtype);
    is_direct_ = group.uses_directly(bytes);
    PendingRequest& pending = pending_.front();
    const void* data = op.input.data;
    if (!is_direct_) {
      std::byte* const copy = pending.in.take(*group.pool, bytes);
      if (bytes > 0) std::memcpy(copy, data, bytes);
      data = copy;
    }
    pending.request = group.api().isend(data, bytes, op.peer, static_cast<int>(op.tag & (kInternal - 1)), comm_);
  }
  ~Send() override { end_now(); }

 private:
  // Open MPI 5 completes a send without an error when a member revokes the communicator.
  bool advance() override {
    if (!group_.api().test(pending_.front().request)) return false;
    if (!group_.api().is_revoked(comm_)) return true;
    throw sdk::Failure(BP_PEER_LOST, "mpi: the communicator was revoked, because the group has lost a rank");
  }
  bool give_up() noexcept override {
    if (is_direct_ && pending_.front().request != Request{}) return false;
    group_.world.abandoned().add(pending_);
    return true;
  }

  const Comm comm_;
  bool is_direct_ = false;
  PendingRequests pending_{1};
};

class Receive final : public Operation {
 public:
  Receive(GroupState& group, const bp_op& op)
      : Operation(group, op.kind),
        data_(op.output.data),
        capacity_(op.output.count * bp_dtype_size(op.dtype)),
        result_(op.result),
        posted_(std::make_shared<Receives::Posted>()) {
    posted_->peer = op.peer == BP_ANY_SOURCE ? kAnySource : op.peer;
    posted_->internal = op.tag != BP_ANY_TAG && (op.tag & kInternal) != 0;
    posted_->tag = op.tag == BP_ANY_TAG ? kAnyTag : static_cast<int>(op.tag & (kInternal - 1));
    if (group.uses_directly(capacity_)) posted_->data = static_cast<std::byte*>(data_);
    posted_->capacity = capacity_;
    group.receives->post(posted_);
  }
  ~Receive() override { end_now(); }

 private:
  bool advance() override {
    if (!posted_->matched.load(std::memory_order_acquire)) return false;
    if (posted_->failure) throw sdk::Failure(*posted_->failure);
    if (!group_.api().test(posted_->pending.front().request)) return false;
    const Envelope& envelope = posted_->envelope;
    const uint64_t bytes = envelope.bytes;
    if (result_ != nullptr) {
      result_->source = envelope.source;
      result_->bytes = bytes;
      result_->tag = static_cast<uint64_t>(envelope.tag) | (posted_->internal ? kInternal : 0);
    }
    if (bytes > capacity_) {
      throw sdk::Failure(BP_INVALID,
                         "the message of rank " + std::to_string(envelope.source) + " has " + std::to_string(bytes) +
                             " bytes, but the receive buffer only " + std::to_string(capacity_),
                         envelope.source);
    }
    if (bytes > 0 && posted_->copy != nullptr) std::memcpy(data_, posted_->copy, bytes);
    return true;
  }
  bool give_up() noexcept override {
    if (group_.receives->withdraw(posted_)) return true;
    const bool is_direct = posted_->data != nullptr && posted_->copy == nullptr;
    if (is_direct && posted_->pending.front().request != Request{}) return false;
    group_.world.abandoned().add(posted_->pending);
    return true;
  }

  void* const data_;
  const uint64_t capacity_;
  bp_result* const result_;
  const std::shared_ptr<Receives::Posted> posted_;
};

bool matches(const Receives::Posted& posted, const Envelope& envelope) {
  return (posted.peer == kAnySource || posted.peer == envelope.source) &&
         (posted.tag == kAnyTag || posted.tag == envelope.tag);
}

}  // namespace

Receives::Receives(Api& api, Comm user, Comm internal, std::shared_ptr<sdk::BlockPool> pool)
    : api_(api), pool_(std::move(pool)), queues_{Queue{user, {}}, Queue{internal, {}}} {}

void Receives::post(const std::shared_ptr<Posted>& posted) {
  const std::lock_guard lock(mutex_);
  queues_[posted->internal ? 1 : 0].waiting.push_back(posted);
  ++count_;
}

bool Receives::withdraw(const std::shared_ptr<Posted>& posted) noexcept {
  const std::lock_guard lock(mutex_);
  const size_t removed = queues_[posted->internal ? 1 : 0].waiting.remove(posted);
  count_ -= removed;
  return removed > 0;
}

void Receives::progress() {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  for (Queue& queue : queues_) {
    while (match_one(queue)) {
    }
  }
}

bool Receives::match_one(Queue& queue) {
  const Posted* previous = nullptr;
  bool is_after_any_tag = false;
  for (auto each = queue.waiting.begin(); each != queue.waiting.end(); ++each) {
    const Posted& posted = **each;
    // Equal receives in sequence, as a window of them, are probed once.
    if (previous != nullptr && previous->peer == posted.peer && previous->tag == posted.tag) continue;
    previous = &posted;
    try {
      if (is_after_any_tag && posted.tag != kAnyTag) {
        if (match_after_any_tag(queue, posted)) return true;
      } else {
        Envelope envelope;
        const auto message = api_.improbe(posted.peer, posted.tag, queue.comm, &envelope);
        if (message) {
          deliver(queue, envelope, *message);
          return true;
        }
      }
    } catch (const sdk::Failure& failure) {
      fail(queue, each, failure);
      return true;
    }
    is_after_any_tag = is_after_any_tag || posted.tag == kAnyTag;
  }
  return false;
}

// Messages may have come since an older receive of any tag was probed. The first of them is its message, not the one
// with the tag of this receive: that one is only taken if no older receive matches it.
bool Receives::match_after_any_tag(Queue& queue, const Posted& posted) {
  const auto found = api_.iprobe(posted.peer, posted.tag, queue.comm);
  if (!found) return false;
  if (find_match(queue, *found)->get() != &posted) return true;  // the next pass finds a message for the older one
  Envelope envelope;
  const auto message = api_.improbe(found->source, found->tag, queue.comm, &envelope);
  if (message) deliver(queue, envelope, *message);
  return message.has_value();
}

Receives::List::iterator Receives::find_match(Queue& queue, const Envelope& envelope) {
  return std::find_if(queue.waiting.begin(), queue.waiting.end(),
                      [&envelope](const auto& posted) { return matches(*posted, envelope); });
}

std::shared_ptr<Receives::Posted> Receives::take(Queue& queue, List::iterator which) {
  std::shared_ptr<Posted> posted = *which;
  queue.waiting.erase(which);
  --count_;
  return posted;
}

void Receives::fail(Queue& queue, List::iterator which, const sdk::Failure& failure) {
  const std::shared_ptr<Posted> posted = take(queue, which);
  posted->failure.emplace(failure);
  posted->matched.store(true, std::memory_order_release);
}

void Receives::deliver(Queue& queue, const Envelope& envelope, Message message) {
  const std::shared_ptr<Posted> posted = take(queue, find_match(queue, envelope));  // at least the one probed for
  posted->envelope = envelope;
  posted->failure = envelope.failure;  // then MPI drops the data, like below
  PendingRequest& pending = posted->pending.front();
  uint64_t bytes = envelope.bytes;
  std::byte* data = bytes > Copy::kInline && bytes <= posted->capacity ? posted->data : nullptr;
  try {
    if (data == nullptr) posted->copy = data = pending.out.take(*pool_, bytes);
  } catch (const std::bad_alloc&) {
    posted->failure.emplace(BP_RESOURCE, "mpi: out of memory for a message of rank " + std::to_string(envelope.source),
                            envelope.source);
    bytes = 0;  // MPI drops the data; otherwise it would keep the message
    posted->copy = data = pending.in.take(*pool_, bytes);
  }
  try {
    pending.request = api_.imrecv(data, bytes, message);
  } catch (const sdk::Failure& failure) {
    if (!posted->failure) posted->failure.emplace(failure);
  }
  posted->matched.store(true, std::memory_order_release);
}

std::unique_ptr<sdk::Work> send(GroupState& group, const bp_op& op) { return perform<Send>(group, op); }

std::unique_ptr<sdk::Work> receive(GroupState& group, const bp_op& op) { return perform<Receive>(group, op); }

}  // namespace backplane::mpi
