// SPDX-License-Identifier: Apache-2.0
#include "dispatcher.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "backplane/sdk/owned_op.hpp"
#include "backplane/sdk/worker.hpp"

namespace backplane::chaos {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kNever = INT64_MAX;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// The rest of a timeout that started at `begin`.
int64_t left_of(int64_t timeout_ns, Clock::time_point begin) {
  if (timeout_ns <= 0) return timeout_ns;
  const int64_t gone = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  return std::max<int64_t>(0, timeout_ns - gone);
}

Clock::time_point at(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }

// The stream of an operation, within which order is kept: collectives, all receives (any of them may match any source),
// or the sends to one peer.
int64_t stream_of(const bp_op& op) { return op.kind == BP_SEND ? op.peer : op.kind == BP_RECV ? -1 : -2; }

}  // namespace

// Guarded by the dispatcher's mutex, except `op`, which does not change, and `inner` in state kForwarded, which then
// belongs to the core: one thread at a time.
struct Dispatcher::Delayed {
  enum class State { kDelayed, kForwarding, kForwarded, kFailed };

  Delayed(const bp_op& given, int32_t world_size, int64_t when)
      : op(given, world_size), stream(stream_of(given)), due(when) {}

  const sdk::OwnedOp op;
  const int64_t stream;
  bool may_be_overtaken = false;  // later operations of its stream may overtake it
  bool overtaken = false;         // one has
  const int64_t due;              // kNever: dropped
  State state = State::kDelayed;
  bool cancelled = false;               // requested in state kForwarding
  std::unique_ptr<sdk::Work> inner;     // set in kForwarded; NULL: done
  std::optional<sdk::Failure> failure;  // set in kFailed
};

class Dispatcher::DelayedWork final : public sdk::Work {
 public:
  DelayedWork(Dispatcher& dispatcher, std::shared_ptr<Delayed> delayed)
      : dispatcher_(dispatcher), delayed_(std::move(delayed)) {}
  // The dispatcher's thread may hold the last reference for a moment. The wrapped work must not outlive this one.
  ~DelayedWork() override { delayed_->inner.reset(); }
  DelayedWork(const DelayedWork&) = delete;
  DelayedWork& operator=(const DelayedWork&) = delete;

  bool wait(int64_t timeout_ns) override { return dispatcher_.wait(delayed_.get(), timeout_ns); }
  void cancel() noexcept override { dispatcher_.cancel(delayed_); }
  bool wait_on_stream(void* stream, int64_t timeout_ns) override {
    const auto begin = Clock::now();
    if (!dispatcher_.await_inner(delayed_.get(), timeout_ns)) return false;
    if (!delayed_->inner) return true;
    return delayed_->inner->wait_on_stream(stream, left_of(timeout_ns, begin));
  }

 private:
  Dispatcher& dispatcher_;
  const std::shared_ptr<Delayed> delayed_;
};

Dispatcher::~Dispatcher() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<sdk::Work> Dispatcher::submit(const bp_op& op, int64_t delay_ns) {
  const int64_t now = now_ns();
  {
    const std::lock_guard lock(mutex_);
    check_aborted(op);
    if (delay_ns > 0 || must_queue(stream_of(op), now)) {
      return delay(std::make_shared<Delayed>(op, world_size_, now + delay_ns));
    }
    count_overtaken(op, nullptr);
  }
  return inner_.submit(op);
}

// Requires the mutex.
void Dispatcher::check_aborted(const bp_op& op) const {
  if (!aborted_) return;
  inner_.drop(op);
  throw sdk::Failure(*aborted_);
}

std::unique_ptr<sdk::Work> Dispatcher::submit_reordered(const bp_op& op, int64_t delay_ns) {
  const std::lock_guard lock(mutex_);
  check_aborted(op);
  auto delayed = std::make_shared<Delayed>(op, world_size_, now_ns() + delay_ns);
  delayed->may_be_overtaken = true;
  return delay(std::move(delayed));
}

uint64_t Dispatcher::overtaken() const {
  const std::lock_guard lock(mutex_);
  return overtaken_;
}

// Counts the messages that the send `by` overtakes. `until`: `by` itself if it was delayed; operations behind it do not
// count. Requires the mutex.
void Dispatcher::count_overtaken(const bp_op& by, const Delayed* until) {
  if (by.kind != BP_SEND) return;
  for (const std::shared_ptr<Delayed>& delayed : delayed_) {
    if (delayed.get() == until) return;
    if (!delayed->may_be_overtaken || delayed->overtaken || delayed->state != Delayed::State::kDelayed ||
        delayed->stream != by.peer)
      continue;
    delayed->overtaken = true;
    ++overtaken_;
  }
}

std::unique_ptr<sdk::Work> Dispatcher::drop(const bp_op& op) {
  const std::lock_guard lock(mutex_);
  check_aborted(op);
  return delay(std::make_shared<Delayed>(op, world_size_, kNever));
}

void Dispatcher::stall(int64_t duration_ns) {
  const std::lock_guard lock(mutex_);
  stalled_until_ = std::max(stalled_until_, now_ns() + duration_ns);
}

void Dispatcher::abort(const sdk::Failure& why) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_.emplace(why);
    std::erase_if(delayed_, [this, &why](const std::shared_ptr<Delayed>& delayed) {
      if (delayed->state != Delayed::State::kDelayed) return false;
      inner_.drop(delayed->op.get());
      delayed->failure.emplace(why);
      delayed->state = Delayed::State::kFailed;
      return true;
    });
  }
  changed_.notify_all();
}

// Requires the mutex.
std::unique_ptr<sdk::Work> Dispatcher::delay(std::shared_ptr<Delayed> delayed) {
  auto work = std::make_unique<DelayedWork>(*this, delayed);
  if (delayed->due != kNever && !thread_.joinable()) thread_ = sdk::start_thread([this] { run(); });
  delayed_.push_back(std::move(delayed));
  changed_.notify_all();
  return work;
}

bool Dispatcher::must_queue(int64_t stream, int64_t now) const {
  if (now < stalled_until_) return true;
  return std::any_of(delayed_.begin(), delayed_.end(), [stream](const std::shared_ptr<Delayed>& delayed) {
    return delayed->stream == stream && delayed->due != kNever && !delayed->may_be_overtaken;
  });
}

// Returns the oldest operation that is due. If there is none, sets *earliest to the time at which the next one is.
std::shared_ptr<Dispatcher::Delayed> Dispatcher::next_due(int64_t now, int64_t* earliest) const {
  std::set<int64_t> blocked;  // streams with an older delayed operation
  *earliest = kNever;
  for (const std::shared_ptr<Delayed>& delayed : delayed_) {
    if (delayed->due == kNever || (!delayed->may_be_overtaken && !blocked.insert(delayed->stream).second)) continue;
    const int64_t due = std::max(delayed->due, stalled_until_);
    if (due <= now) return delayed;
    *earliest = std::min(*earliest, due);
  }
  return nullptr;
}

void Dispatcher::forward(const std::shared_ptr<Delayed>& delayed, std::unique_lock<std::mutex>* lock) {
  count_overtaken(delayed->op.get(), delayed.get());
  delayed->state = Delayed::State::kForwarding;  // keeps its position until the wrapped group has accepted it
  lock->unlock();
  std::unique_ptr<sdk::Work> inner;
  bp_error err;
  bp_error_init(&err);
  const int32_t status = sdk::guarded(&err, [this, &inner, &delayed] {
    inner = inner_.submit(delayed->op.get());
    return BP_OK;
  });
  lock->lock();
  delayed_.remove(delayed);
  if (status != BP_OK) {
    delayed->failure.emplace(err);
    delayed->state = Delayed::State::kFailed;
  } else {
    if (delayed->cancelled && inner) inner->cancel();
    delayed->inner = std::move(inner);
    delayed->state = Delayed::State::kForwarded;
  }
  changed_.notify_all();
}

void Dispatcher::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    int64_t earliest = kNever;
    if (const std::shared_ptr<Delayed> delayed = next_due(now_ns(), &earliest)) {
      forward(delayed, &lock);
    } else if (earliest == kNever) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, at(earliest));
    }
  }
}

bool Dispatcher::await_inner(Delayed* delayed, int64_t timeout_ns) {
  constexpr int64_t kLongest = INT64_C(30'000'000'000'000'000);  // a year; now + INT64_MAX would overflow
  std::unique_lock lock(mutex_);
  const auto decided = [delayed] {
    return delayed->state == Delayed::State::kForwarded || delayed->state == Delayed::State::kFailed;
  };
  if (timeout_ns < 0) {
    changed_.wait(lock, decided);
  } else if (timeout_ns > 0) {
    changed_.wait_until(lock, at(now_ns() + std::min(timeout_ns, kLongest)), decided);
  }
  if (!decided()) return false;
  if (delayed->failure) throw sdk::Failure(*delayed->failure);
  return true;
}

bool Dispatcher::wait(Delayed* delayed, int64_t timeout_ns) {
  const auto begin = Clock::now();
  if (!await_inner(delayed, timeout_ns)) return false;
  return !delayed->inner || delayed->inner->wait(left_of(timeout_ns, begin));
}

void Dispatcher::cancel(const std::shared_ptr<Delayed>& delayed) {
  sdk::Work* inner = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (delayed->state == Delayed::State::kDelayed) {
      inner_.drop(delayed->op.get());
      delayed->failure.emplace(BP_CANCELLED, "cancelled by this rank before it was forwarded");
      delayed->state = Delayed::State::kFailed;
      delayed_.remove(delayed);
    } else if (delayed->state == Delayed::State::kForwarding) {
      delayed->cancelled = true;
    } else if (delayed->state == Delayed::State::kForwarded) {
      inner = delayed->inner.get();
    }
  }
  changed_.notify_all();
  if (inner != nullptr) inner->cancel();  // the core never runs cancel beside release, so it still exists
}

}  // namespace backplane::chaos
