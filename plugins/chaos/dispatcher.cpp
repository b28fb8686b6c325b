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

// What is left of a time limit that began then.
int64_t left_of(int64_t timeout_ns, Clock::time_point begin) {
  if (timeout_ns <= 0) return timeout_ns;
  const int64_t gone = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  return std::max<int64_t>(0, timeout_ns - gone);
}

Clock::time_point at(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }

// What must keep its order: collectives, receives (any of them may take a message from anyone), sends to each peer.
int64_t stream_of(const bp_op& op) { return op.kind == BP_SEND ? op.peer : op.kind == BP_RECV ? -1 : -2; }

}  // namespace

// Guarded by the dispatcher's mutex, but for `op`, which does not change, and `inner` once it is kHandedOn: then it is
// the core's, one thread at a time.
struct Dispatcher::Held {
  enum class State { kHeld, kBeingHandedOn, kHandedOn, kFailed };

  Held(const bp_op& given, int32_t world_size, int64_t when)
      : op(given, world_size), stream(stream_of(given)), due(when) {}

  const sdk::OwnedOp op;
  const int64_t stream;
  bool loose = false;   // later ones of its stream may pass it
  bool passed = false;  // and one has
  const int64_t due;    // kNever: dropped
  State state = State::kHeld;
  bool cancelled = false;               // asked for while it was being handed on
  std::unique_ptr<sdk::Work> inner;     // kHandedOn; NULL: done
  std::optional<sdk::Failure> failure;  // kFailed
};

class Dispatcher::HeldWork final : public sdk::Work {
 public:
  HeldWork(Dispatcher& dispatcher, std::shared_ptr<Held> held) : dispatcher_(dispatcher), held_(std::move(held)) {}
  // The dispatcher's thread may hold the last reference for a moment; the wrapped work must not live until then.
  ~HeldWork() override { held_->inner.reset(); }
  HeldWork(const HeldWork&) = delete;
  HeldWork& operator=(const HeldWork&) = delete;

  bool wait(int64_t timeout_ns) override { return dispatcher_.wait(held_.get(), timeout_ns); }
  void cancel() noexcept override { dispatcher_.cancel(held_); }
  bool wait_on_stream(void* stream, int64_t timeout_ns) override {
    const auto begin = Clock::now();
    if (!dispatcher_.await_inner(held_.get(), timeout_ns)) return false;
    if (!held_->inner) return true;
    return held_->inner->wait_on_stream(stream, left_of(timeout_ns, begin));
  }

 private:
  Dispatcher& dispatcher_;
  const std::shared_ptr<Held> held_;
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
    refuse_if_aborted(op);
    if (delay_ns > 0 || must_queue(stream_of(op), now)) {
      return hold(std::make_shared<Held>(op, world_size_, now + delay_ns));
    }
    note_passed(op, nullptr);
  }
  return inner_.submit(op);
}

// The mutex is held.
void Dispatcher::refuse_if_aborted(const bp_op& op) const {
  if (!aborted_) return;
  inner_.drop(op);
  throw sdk::Failure(*aborted_);
}

std::unique_ptr<sdk::Work> Dispatcher::let_pass(const bp_op& op, int64_t delay_ns) {
  const std::lock_guard lock(mutex_);
  refuse_if_aborted(op);
  auto held = std::make_shared<Held>(op, world_size_, now_ns() + delay_ns);
  held->loose = true;
  return hold(std::move(held));
}

uint64_t Dispatcher::passed() const {
  const std::lock_guard lock(mutex_);
  return passed_;
}

// A send is handed on; `until`: it has been held itself, and came before those behind it. The mutex is held.
void Dispatcher::note_passed(const bp_op& by, const Held* until) {
  if (by.kind != BP_SEND) return;
  for (const std::shared_ptr<Held>& held : held_) {
    if (held.get() == until) return;
    if (!held->loose || held->passed || held->state != Held::State::kHeld || held->stream != by.peer) continue;
    held->passed = true;
    ++passed_;
  }
}

std::unique_ptr<sdk::Work> Dispatcher::drop(const bp_op& op) {
  const std::lock_guard lock(mutex_);
  refuse_if_aborted(op);
  return hold(std::make_shared<Held>(op, world_size_, kNever));
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
    std::erase_if(held_, [this, &why](const std::shared_ptr<Held>& held) {
      if (held->state != Held::State::kHeld) return false;
      inner_.drop(held->op.get());
      held->failure.emplace(why);
      held->state = Held::State::kFailed;
      return true;
    });
  }
  changed_.notify_all();
}

// The mutex is held.
std::unique_ptr<sdk::Work> Dispatcher::hold(std::shared_ptr<Held> held) {
  auto work = std::make_unique<HeldWork>(*this, held);
  if (held->due != kNever && !thread_.joinable()) thread_ = sdk::start_thread([this] { run(); });
  held_.push_back(std::move(held));
  changed_.notify_all();
  return work;
}

bool Dispatcher::must_queue(int64_t stream, int64_t now) const {
  if (now < stalled_until_) return true;
  return std::any_of(held_.begin(), held_.end(), [stream](const std::shared_ptr<Held>& held) {
    return held->stream == stream && held->due != kNever && !held->loose;
  });
}

// The oldest operation that may be handed on now, or else when the next one may.
std::shared_ptr<Dispatcher::Held> Dispatcher::next_due(int64_t now, int64_t* earliest) const {
  std::set<int64_t> blocked;  // streams with an older operation that is held back
  *earliest = kNever;
  for (const std::shared_ptr<Held>& held : held_) {
    if (held->due == kNever || (!held->loose && !blocked.insert(held->stream).second)) continue;
    const int64_t due = std::max(held->due, stalled_until_);
    if (due <= now) return held;
    *earliest = std::min(*earliest, due);
  }
  return nullptr;
}

void Dispatcher::hand_on(const std::shared_ptr<Held>& held, std::unique_lock<std::mutex>* lock) {
  note_passed(held->op.get(), held.get());
  held->state = Held::State::kBeingHandedOn;  // it keeps its place until the wrapped group has it
  lock->unlock();
  std::unique_ptr<sdk::Work> inner;
  bp_error err;
  bp_error_init(&err);
  const int32_t status = sdk::guarded(&err, [this, &inner, &held] {
    inner = inner_.submit(held->op.get());
    return BP_OK;
  });
  lock->lock();
  held_.remove(held);
  if (status != BP_OK) {
    held->failure.emplace(err);
    held->state = Held::State::kFailed;
  } else {
    if (held->cancelled && inner) inner->cancel();
    held->inner = std::move(inner);
    held->state = Held::State::kHandedOn;
  }
  changed_.notify_all();
}

void Dispatcher::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    int64_t earliest = kNever;
    if (const std::shared_ptr<Held> held = next_due(now_ns(), &earliest)) {
      hand_on(held, &lock);
    } else if (earliest == kNever) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, at(earliest));
    }
  }
}

bool Dispatcher::await_inner(Held* held, int64_t timeout_ns) {
  constexpr int64_t kLongest = INT64_C(30'000'000'000'000'000);  // a year; now + INT64_MAX would overflow
  std::unique_lock lock(mutex_);
  const auto decided = [held] { return held->state == Held::State::kHandedOn || held->state == Held::State::kFailed; };
  if (timeout_ns < 0) {
    changed_.wait(lock, decided);
  } else if (timeout_ns > 0) {
    changed_.wait_until(lock, at(now_ns() + std::min(timeout_ns, kLongest)), decided);
  }
  if (!decided()) return false;
  if (held->failure) throw sdk::Failure(*held->failure);
  return true;
}

bool Dispatcher::wait(Held* held, int64_t timeout_ns) {
  const auto begin = Clock::now();
  if (!await_inner(held, timeout_ns)) return false;
  return !held->inner || held->inner->wait(left_of(timeout_ns, begin));
}

void Dispatcher::cancel(const std::shared_ptr<Held>& held) {
  sdk::Work* inner = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (held->state == Held::State::kHeld) {
      inner_.drop(held->op.get());
      held->failure.emplace(BP_CANCELLED, "cancelled by this rank before it was handed on");
      held->state = Held::State::kFailed;
      held_.remove(held);
    } else if (held->state == Held::State::kBeingHandedOn) {
      held->cancelled = true;
    } else if (held->state == Held::State::kHandedOn) {
      inner = held->inner.get();
    }
  }
  changed_.notify_all();
  if (inner != nullptr) inner->cancel();  // cancel never runs beside release, so it is still there
}

}  // namespace backplane::chaos
