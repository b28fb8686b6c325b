// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "pair.hpp"
#include "transport.hpp"

namespace backplane::gloo {
namespace {

// Connections return to gloo's thread after this time without a scope: long enough for consecutive operations, short
// enough to notice soon that a peer has left.
constexpr long kIdleNs = 2'000'000;

// Up to this many connections are read without polling them first.
constexpr size_t kPollAllUpTo = 2;

thread_local ProgressScope* scope_of_thread = nullptr;

timespec time_until(Clock::time_point until) {
  const Clock::time_point now = Clock::now();
  const int64_t left = until > now ? std::chrono::nanoseconds(until - now).count() : 0;
  return {left / 1'000'000'000, left % 1'000'000'000};
}

}  // namespace

ProgressEngine::ProgressEngine(::gloo::transport::tcp::Device& device)
    : device_(device), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  if (timer_ < 0) {
    throw sdk::Failure(BP_RESOURCE, "gloo: no descriptor left for a timer; raise this process's limit (ulimit -n)", -1,
                       errno);
  }
  device_.registerDescriptor(timer_, EPOLLIN, this);
}

ProgressEngine::~ProgressEngine() {
  device_.unregisterDescriptor(timer_, this);
  handovers_.load(std::memory_order_acquire);  // orders gloo's thread before this one; ThreadSanitizer cannot see the
                                               // order inside the library
  close(timer_);
}

void ProgressEngine::add_passive_waiter() {
  passive_waiters_.fetch_add(1);
  if (!try_acquire()) return;  // the driver will see the waiter
  give_back_connections();
  release();
}

void ProgressEngine::release() {
  for (;;) {
    const bool is_needed = passive_waiters_.load() > 0;
    if (is_needed) give_back_connections();
    acquired_.store(false);
    if (is_needed || passive_waiters_.load() == 0 || !try_acquire()) return;  // retry: a waiter has come in between
  }
}

void ProgressEngine::give_back_connections() {
  for (Pair* const pair : pairs_) pair->progress().give_back();
  pairs_.clear();
  polled_.clear();
}

void ProgressEngine::handleEvents(int) {
  check_idle();
  handovers_.fetch_add(1, std::memory_order_release);
}

void ProgressEngine::check_idle() {
  uint64_t expired = 0;
  if (read(timer_, &expired, sizeof(expired)) < 0) return;
  if (scopes_.load() != scopes_seen_) {
    scopes_seen_ = scopes_.load();
    return;
  }
  if (!try_acquire()) return;
  give_back_connections();
  set_timer(false);
  release();
}

void ProgressEngine::set_timer(bool on) {
  if (timer_on_ == on) return;
  const timespec time = {0, on ? kIdleNs : 0};
  const itimerspec spec = {time, time};
  timerfd_settime(timer_, 0, &spec, nullptr);
  timer_on_ = on;
}

PassiveWaiter::PassiveWaiter(Context* context) : engine_(context == nullptr ? nullptr : &context->engine()) {
  if (engine_ != nullptr) engine_->add_passive_waiter();
}

PassiveWaiter::~PassiveWaiter() {
  if (engine_ != nullptr) engine_->remove_passive_waiter();
}

ProgressScope::ProgressScope(Context* context) : context_(context), outer_(scope_of_thread) {
  if (outer_ != nullptr || context_ == nullptr) return;
  is_driver_ = context_->engine().try_acquire();
  if (is_driver_) {
    scope_of_thread = this;
  } else {
    passive_waiter_.emplace(context_);
  }
}

ProgressScope::~ProgressScope() {
  if (!is_driver_) return;
  ProgressEngine& engine = context_->engine();
  scope_of_thread = nullptr;
  engine.scopes_.fetch_add(1);
  const bool written =
      std::all_of(engine.pairs_.begin(), engine.pairs_.end(), [](Pair* pair) { return pair->progress().flush(); });
  if (!written) engine.give_back_connections();
  if (!engine.pairs_.empty()) engine.set_timer(true);
  engine.release();
}

ProgressScope* ProgressScope::current() {
  ProgressScope* const progress_scope = scope_of_thread;
  return progress_scope == nullptr || progress_scope->context_->engine().pairs_.empty() ? nullptr : progress_scope;
}

bool ProgressScope::drives(const Context& context) {
  return scope_of_thread != nullptr && scope_of_thread->context_ == &context;
}

void ProgressScope::attach(Pair& pair) {
  if (!drives(pair.owner()) || scope_of_thread->ended_ || pair.progress().is_taken()) return;
  ProgressEngine& engine = pair.owner().engine();
  engine.pairs_.reserve(engine.pairs_.size() + 1);
  engine.polled_.reserve(engine.polled_.size() + 1);
  const int fd = pair.progress().take();
  if (fd < 0) {
    // gloo's thread connects, and moves the bytes of this scope: the driver would not see what that thread completes.
    if (pair.connection().is_connecting()) {
      scope_of_thread->ended_ = true;
      engine.give_back_connections();
    }
    return;
  }
  engine.pairs_.push_back(&pair);
  engine.polled_.push_back({fd, POLLIN, POLLIN});
}

void ProgressScope::advance(Clock::time_point until) {
  std::vector<pollfd>& polled = context_->engine().polled_;
  if (poll_connections(false)) return;
  const auto poll_once = [this, &polled] {
    const bool ask_first = polled.size() > kPollAllUpTo;
    if (ask_first && poll(polled.data(), polled.size(), 0) <= 0) return false;
    return poll_connections(ask_first);
  };
  if (context_->engine().spin_policy_.poll(until, poll_once)) return;
  context_->engine().set_timer(false);  // it would keep waking gloo's thread
  const timespec left = time_until(until);
  if (left.tv_sec > 0 || left.tv_nsec > 0) ppoll(polled.data(), polled.size(), &left, nullptr);
}

// Returns true if bytes have moved.
bool ProgressScope::poll_connections(bool only_ready) {
  ProgressEngine& engine = context_->engine();
  bool moved = false;
  for (size_t i = 0; i < engine.pairs_.size(); ++i) {
    if (only_ready && engine.polled_[i].revents == 0) continue;
    const PairProgress::Progress progress = engine.pairs_[i]->progress().advance();
    if (progress == PairProgress::Progress::kEnded) {
      ended_ = true;
      engine.give_back_connections();
      return true;
    }
    moved = moved || progress == PairProgress::Progress::kMoved;
    engine.polled_[i].events = POLLIN | (progress == PairProgress::Progress::kBlocked ? POLLOUT : 0);
  }
  return moved;
}

}  // namespace backplane::gloo
