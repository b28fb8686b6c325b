// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace backplane::c10d {
namespace {

using Bytes = std::vector<std::byte>;

Bytes copy_of(const bp_buffer& buffer, uint64_t element) {
  Bytes bytes(buffer.count * element);
  if (!bytes.empty()) std::memcpy(bytes.data(), buffer.data, bytes.size());
  return bytes;
}

}  // namespace

struct Collectives::Call {
  explicit Call(const bp_op& op)
      : kind(op.kind),
        dtype(op.dtype),
        reduce_op(op.reduce_op),
        root(op.root),
        input(copy_of(op.input, bp_dtype_size(op.dtype))),
        output(op.output.count * bp_dtype_size(op.dtype)),
        target(op.output.data) {}

  // Ends the operation, unless it has ended: its buffers are not touched after that.
  void finish() {
    const std::lock_guard lock(mutex);
    if (std::exchange(ended, true)) return;
    if (!output.empty()) std::memcpy(target, output.data(), output.size());
    completion->finish();
  }
  // Returns false if it had ended.
  bool fail(const sdk::Failure& why) noexcept {
    const std::lock_guard lock(mutex);
    if (std::exchange(ended, true)) return false;
    completion->fail(why);
    return true;
  }

  const uint32_t kind;
  const uint32_t dtype;
  const uint32_t reduce_op;
  const int32_t root;
  const Bytes input;
  Bytes output;
  void* const target;
  const std::shared_ptr<sdk::Completion> completion = std::make_shared<sdk::Completion>();
  std::mutex mutex;
  bool ended = false;
};

void Collectives::start() {
  running_ = 2;
  const auto body = [self = shared_from_this()](void (Collectives::*run)()) {
    (self.get()->*run)();
    const std::lock_guard lock(self->mutex_);
    --self->running_;
    self->changed_.notify_all();
  };
  thread_ = sdk::start_thread([body] { body(&Collectives::run); });
  try {
    watcher_ = sdk::start_thread([body] { body(&Collectives::watch); });
  } catch (const sdk::Failure&) {
    --running_;
    throw;
  }
}

std::unique_ptr<sdk::Work> Collectives::submit(const bp_op& op) {
  if (op.kind != BP_BARRIER && std::max(op.input.count, op.output.count) == 0) return nullptr;
  auto call = std::make_shared<Call>(op);
  auto work = std::make_unique<sdk::CompletionWork>(call->completion,
                                                    [self = shared_from_this(), call] { self->cancel(*call); });
  const std::lock_guard lock(mutex_);
  if (failed_) throw sdk::Failure(*failed_);
  if (broken_off_) throw sdk::Failure(*broken_off_);
  queue_.push_back(std::move(call));
  changed_.notify_all();
  return work;
}

void Collectives::run() {
  for (;;) {
    std::shared_ptr<Call> call;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty() || stopped_ || failed_ || broken_off_; });
      if (stopped_ || failed_ || broken_off_) return;
      call = queue_.front();
    }
    perform(*call);
    const std::lock_guard lock(mutex_);
    if (!queue_.empty() && queue_.front() == call) queue_.pop_front();
  }
}

void Collectives::perform(Call& call) {
  const CollectiveCall arguments = {call.kind,         call.dtype,        call.reduce_op,     call.root,
                                    call.input.data(), call.input.size(), call.output.data(), call.output.size()};
  try {
    torch_->collect(arguments);
    // The root of a broadcast has the data already, and its output is its input.
    if (call.kind == BP_BROADCAST && torch_->rank == call.root) call.output.clear();
    call.finish();
  } catch (const sdk::Failure& failure) {
    call.fail(cause_of(failure));
  }
}

// torch names connections; the receivers of messages know which rank was lost, at most a moment later.
sdk::Failure Collectives::cause_of(const sdk::Failure& failure) {
  constexpr std::chrono::milliseconds kMoment(500);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kMoment, [this] { return lost_ || failed_ || stopped_; });
  if (failed_) return *failed_;
  if (lost_) return *lost_;
  return failure;
}

void Collectives::lost(const sdk::Failure& why, bool in_order) {
  bool has_grace = in_order;
  {
    const std::lock_guard lock(mutex_);
    has_grace |= lost_ && !broken_off_;  // another one has left in order
    if (!lost_) lost_.emplace(why);
    changed_.notify_all();
  }
  if (!has_grace) break_off(why);
}

void Collectives::cancel(Call& call) {
  if (!call.fail(sdk::Failure(BP_CANCELLED, "cancelled by this rank"))) return;
  break_off(sdk::Failure(BP_CANCELLED,
                         "a collective was cancelled by this rank, and torch may still perform it; "
                         "destroy the group and create another"));
}

void Collectives::break_off(const sdk::Failure& why) {
  std::deque<std::shared_ptr<Call>> calls;
  {
    const std::lock_guard lock(mutex_);
    if (!broken_off_) broken_off_.emplace(why);
    calls = queue_;
    changed_.notify_all();
  }
  for (const auto& call : calls) call->fail(why);
}

void Collectives::watch() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || failed_ || (lost_ && !queue_.empty()); });
    if (failed_) {
      lock.unlock();
      return torch_->close();
    }
    if (stopped_) return;
    const std::shared_ptr<Call> call = queue_.front();
    changed_.wait_for(lock, kGrace,
                      [this, &call] { return stopped_ || failed_ || queue_.empty() || queue_.front() != call; });
    if (!stopped_ && !failed_ && !queue_.empty() && queue_.front() == call) {
      const sdk::Failure why = *lost_;
      lock.unlock();
      break_off(why);
      lock.lock();
    }
    changed_.wait(lock, [this, &call] { return stopped_ || failed_ || queue_.empty() || queue_.front() != call; });
  }
}

void Collectives::fail(const sdk::Failure& why) noexcept {
  std::deque<std::shared_ptr<Call>> calls;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_.emplace(why);
    calls.swap(queue_);
    changed_.notify_all();
  }
  for (const auto& call : calls) call->fail(why);
}

void Collectives::stop(const base::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  const bool ended =
      changed_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()), [this] { return running_ == 0; });
  lock.unlock();
  for (std::thread* thread : {&thread_, &watcher_}) {
    if (thread->joinable()) ended ? thread->join() : thread->detach();
  }
}

}  // namespace backplane::c10d
