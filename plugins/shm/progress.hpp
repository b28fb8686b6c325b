// SPDX-License-Identifier: Apache-2.0
//
// Waiting for another rank: a thread spins for a short time, then yields between polls, then sleeps on its rank's
// doorbell. With more ranks than processors it does not spin. While it spins it yields now and then, and stops spinning
// if another thread has run meanwhile, such as a rank of another group.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "backplane/sdk/interrupt.hpp"
#include "backplane/sdk/spin_policy.hpp"
#include "peers.hpp"

namespace backplane::shm {

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline int64_t steady_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A deadline that starts at its first query, so that operations that do not wait never read the clock.
class LazyDeadline {
 public:
  // `asks`: a thread of the program waits, which asks the program for interruptions.
  explicit LazyDeadline(int64_t timeout_ns, bool asks = false) : timeout_ns_(timeout_ns), asks_(asks) {}
  int64_t left_ns() {  // at least 0, or BP_NO_TIMEOUT
    if (timeout_ns_ < 0) return BP_NO_TIMEOUT;
    const int64_t now = steady_ns();
    if (begin_ == 0) begin_ = now;
    return std::max<int64_t>(0, timeout_ns_ - (now - begin_));
  }
  bool passed() { return left_ns() == 0; }
  bool is_zero() const { return timeout_ns_ == 0; }
  bool asks() const { return asks_; }
  // Whether to ask now, in a wait since `begin`: kAskNs after the last question, or after the first long wait's begin.
  bool must_ask(int64_t begin, int64_t now) {
    if (!asks_) return false;
    if (asked_ == 0) asked_ = begin;
    return now - asked_ >= kAskNs;
  }
  void asked(int64_t now) { asked_ = now; }

  static constexpr int64_t kAskNs = 50'000'000;

 private:
  const int64_t timeout_ns_;
  const bool asks_;
  int64_t begin_ = 0;  // 0: not queried yet
  int64_t asked_ = 0;  // 0: no long wait yet
};

struct WaitPolicy {
  int64_t spin_ns = 0;
  int64_t yield_ns = 0;
};

enum class WaitResult { kReady, kTimeout, kAborted, kInterrupted };

// kFull: the thread may sleep or give up after this poll, so it must check everything that is followed by a ring.
enum class Poll { kQuick, kFull };

class Waiter {
 public:
  // `peers` is null in a group of one, whose doorbell is private.
  Waiter(Doorbell& doorbell, Peers* peers, const WaitPolicy& policy, const sdk::Interruption& interruption)
      : doorbell_(doorbell),
        peers_(peers),
        interruption_(interruption),
        spin_ns_(policy.spin_ns),
        yields_(std::chrono::nanoseconds(policy.yield_ns)) {}

  // Waits until ready(Poll) returns true. If the deadline asks, calls the program's handlers, with no lock of its own.
  // ready is called often; it may make progress and may throw. Events that make it true must be followed by
  // ring(doorbell).
  template <typename Ready>
  WaitResult until(LazyDeadline& deadline, const Ready& ready);

  // For the progress thread: sleeps at once and does not count as a driver. Returns also on abort.
  template <typename Ready>
  void sleep_until(const Ready& ready);

  // Threads inside `until`, and the number of waits so far.
  uint32_t drivers() const noexcept { return drivers_.load(); }
  uint64_t drives() const noexcept { return drives_.load(); }

  // Ends all current and future waits. Any thread, does not block. Only the first call has an effect.
  void abort(const sdk::Failure& why) noexcept;
  bool aborted() const noexcept { return aborted_.load(); }
  // Throws the reason if aborted.
  void check() const {
    if (aborted()) throw_why();
  }

  // Wakes the sleeping threads of this rank.
  void wake() noexcept { ring(doorbell_); }
  bool spins() const noexcept { return spin_ns_ > 0; }
  // Whether waits yield without spinning, as with more ranks than processors.
  bool only_yields() const noexcept { return spin_ns_ == 0 && yields_.limit().count() > 0; }
  // Yields. Returns false if another thread computes, so that sleeping is better than another yield.
  bool yield_once() {
    const sdk::SpinPolicy::Clock::time_point now = sdk::SpinPolicy::Clock::now();
    return yields_.is_worthwhile(now) && yields_.is_worthwhile(yields_.yield(now));
  }

 private:
  class Sleeper {
   public:
    explicit Sleeper(Waiter& waiter) : doorbell_(waiter.doorbell_) {
      doorbell_.sleepers.fetch_add(1);
      if (waiter.peers_ != nullptr) waiter.peers_->fence();
    }
    ~Sleeper() { doorbell_.sleepers.fetch_sub(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

   private:
    Doorbell& doorbell_;
  };

  class Driver {
   public:
    explicit Driver(Waiter& waiter) : waiter_(waiter) {
      waiter_.drivers_.fetch_add(1);
      waiter_.drives_.fetch_add(1);
    }
    ~Driver() { waiter_.drivers_.fetch_sub(1); }
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

   private:
    Waiter& waiter_;
  };

  // The first part of `until`, which began at `begin`. Returns nothing if the wait goes on.
  template <typename Ready>
  std::optional<WaitResult> spin(int64_t begin, LazyDeadline& deadline, const Ready& ready);
  // Yields. Returns whether another thread has run meanwhile.
  bool yields_to_others();

  [[noreturn]] void throw_why() const;

  static constexpr int kMaxBatch = 16;                // polls
  static constexpr int kMaxYields = 3;                // of yields before a wait counts as one
  static constexpr int64_t kLong = 2'000;             // ns; longer than most waits, and the time between two yields
  static constexpr int64_t kMaxSleepNs = 50'000'000;  // interval of liveness checks

  // Sleeps until the doorbell rings or a timeout, at most kMaxSleepNs. Returns whether it rang.
  bool sleep(uint32_t rings, int64_t left_ns) noexcept;

  Doorbell& doorbell_;
  Peers* const peers_;
  const sdk::Interruption& interruption_;
  const int64_t spin_ns_;
  sdk::SpinPolicy yields_;
  std::atomic<bool> aborted_ = false;
  std::atomic<uint32_t> drivers_ = 0;
  std::atomic<uint64_t> drives_ = 0;
  mutable std::mutex mutex_;  // guards why_
  std::optional<sdk::Failure> why_;
};

template <typename Ready>
std::optional<WaitResult> Waiter::spin(int64_t begin, LazyDeadline& deadline, const Ready& ready) {
  const int64_t spin_ns = deadline.asks() ? std::min(spin_ns_, LazyDeadline::kAskNs) : spin_ns_;
  int64_t next_yield = begin + kLong;
  int batch = 4;  // polls between two looks at the clock
  for (int64_t now = begin; now - begin < spin_ns;) {
    if (now > next_yield) {
      if (aborted()) return ready(Poll::kFull) ? WaitResult::kReady : WaitResult::kAborted;
      if (deadline.passed()) return ready(Poll::kFull) ? WaitResult::kReady : WaitResult::kTimeout;
      const bool shares = peers_ != nullptr && peers_->shares_processor();
      if (shares || yields_to_others()) return {};
      next_yield = now + kLong;
    }
    for (int i = 0; i < batch; ++i) {
      if (ready(Poll::kQuick)) return WaitResult::kReady;
      relax();
    }
    const int64_t before = std::exchange(now, steady_ns());
    if (batch < kMaxBatch && now - before < kLong / 8) batch *= 2;
  }
  return {};
}

template <typename Ready>
WaitResult Waiter::until(LazyDeadline& deadline, const Ready& ready) {
  if (ready(deadline.is_zero() ? Poll::kFull : Poll::kQuick)) return WaitResult::kReady;
  // A hint for the progress thread. Not an atomic addition, which would wait for earlier writes.
  drives_.store(drives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (deadline.is_zero()) return aborted() ? WaitResult::kAborted : WaitResult::kTimeout;
  // With more ranks than processors most waits end after another rank's time slice.
  bool is_brief = true;
  for (int i = 0; i < kMaxYields && only_yields() && is_brief && !aborted(); ++i) {
    is_brief = yield_once();
    if (ready(Poll::kQuick)) return WaitResult::kReady;
  }
  const int64_t begin = steady_ns();
  if (const std::optional<WaitResult> ended = spin(begin, deadline, ready); ended) return *ended;
  std::optional<Driver> driver(std::in_place, *this);
  auto yielding_until = sdk::SpinPolicy::Clock::now() + yields_.limit();
  for (;;) {
    if (aborted()) return ready(Poll::kFull) ? WaitResult::kReady : WaitResult::kAborted;
    if (deadline.passed()) return ready(Poll::kFull) ? WaitResult::kReady : WaitResult::kTimeout;
    const sdk::SpinPolicy::Clock::time_point now = sdk::SpinPolicy::Clock::now();
    if (deadline.must_ask(begin, std::chrono::nanoseconds(now.time_since_epoch()).count())) {
      driver.reset();  // meanwhile the progress thread drives
      if (interruption_.asked()) return ready(Poll::kFull) ? WaitResult::kReady : WaitResult::kInterrupted;
      driver.emplace(*this);
      deadline.asked(steady_ns());
      continue;  // handlers may have taken long, which is no yield
    }
    // With more ranks than processors a yield runs another rank, however long that computes.
    if (now < yielding_until && (!spins() || yields_.is_worthwhile(now))) {
      yields_.yield(now);
      if (ready(Poll::kFull)) return WaitResult::kReady;
      continue;
    }
    const Sleeper sleeper(*this);
    const uint32_t rings = doorbell_.rings.load();
    if (ready(Poll::kFull)) return WaitResult::kReady;
    if (aborted()) return WaitResult::kAborted;
    if (sleep(rings, deadline.left_ns())) yielding_until = sdk::SpinPolicy::Clock::now() + yields_.limit();
    if (ready(Poll::kFull)) return WaitResult::kReady;
  }
}

template <typename Ready>
void Waiter::sleep_until(const Ready& ready) {
  while (!aborted()) {
    const Sleeper sleeper(*this);
    const uint32_t rings = doorbell_.rings.load();
    if (ready() || aborted()) return;
    sleep(rings, -1);
  }
}

}  // namespace backplane::shm
