// SPDX-License-Identifier: Apache-2.0
//
// How a thread waits for another rank: it polls for a short while, then lets others have the processor between two
// looks, and at last sleeps on its rank's bell. With more ranks than processors it never polls.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

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

// A deadline that looks at the clock only when somebody has to wait: it counts from the first question.
class Limit {
 public:
  explicit Limit(int64_t timeout_ns) : timeout_ns_(timeout_ns) {}
  int64_t left_ns() {  // at least 0, or BP_NO_TIMEOUT
    if (timeout_ns_ < 0) return BP_NO_TIMEOUT;
    const int64_t now = steady_ns();
    if (begin_ == 0) begin_ = now;
    return std::max<int64_t>(0, timeout_ns_ - (now - begin_));
  }
  bool passed() { return left_ns() == 0; }
  bool is_zero() const { return timeout_ns_ == 0; }

 private:
  const int64_t timeout_ns_;
  int64_t begin_ = 0;  // 0: nobody has asked
};

struct Patience {
  int64_t spin_ns = 0;
  int64_t yield_ns = 0;
};

enum class End { kReady, kLate, kAborted };

// How a waiting thread looks. Full: it may sleep or give up after this look, which must therefore leave out nothing
// that would be followed by a ring.
enum class Look { kQuick, kFull };

class Waiting {
 public:
  // `peers` is null in a group of one, whose bell is private.
  Waiting(Bell& bell, Peers* peers, const Patience& patience)
      : bell_(bell), peers_(peers), spin_ns_(patience.spin_ns), yields_(std::chrono::nanoseconds(patience.yield_ns)) {}

  // Waits until ready(Look) says so, and does not ask again after that. It is asked often; it may move things on, and
  // may throw. Whatever makes it true must be followed by ring(bell).
  template <typename Ready>
  End until(Limit& limit, const Ready& ready);

  // The same for a thread that nobody waits for: it sleeps at once, and does not count as a driver. Until aborted.
  template <typename Ready>
  void sleep_until(const Ready& ready);

  // How many threads are in `until`, and how often one was.
  uint32_t drivers() const noexcept { return drivers_.load(); }
  uint64_t drives() const noexcept { return drives_.load(); }

  // Ends all waits, now and later. Any thread, does not block. Only the first call counts.
  void abort(const sdk::Failure& why) noexcept;
  bool aborted() const noexcept { return aborted_.load(); }
  // Throws the reason if aborted.
  void check() const {
    if (aborted()) throw_why();
  }

  // Wakes the threads of this rank that sleep.
  void wake() noexcept { ring(bell_); }
  bool polls() const noexcept { return spin_ns_ > 0; }
  // Does it yield at once, as with more ranks than processors?
  bool gives_turns() const noexcept { return spin_ns_ == 0 && yields_.limit().count() > 0; }
  // Yields. False if somebody computes: to sleep is better than another turn of his.
  bool give_turn() {
    const sdk::SpinPolicy::Clock::time_point now = sdk::SpinPolicy::Clock::now();
    return yields_.pays(now) && yields_.pays(yields_.yield(now));
  }

 private:
  class Sleeper {
   public:
    explicit Sleeper(Waiting& waiting) : bell_(waiting.bell_) {
      bell_.sleepers.fetch_add(1);
      if (waiting.peers_ != nullptr) waiting.peers_->fence();
    }
    ~Sleeper() { bell_.sleepers.fetch_sub(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

   private:
    Bell& bell_;
  };

  class Driver {
   public:
    explicit Driver(Waiting& waiting) : waiting_(waiting) {
      waiting_.drivers_.fetch_add(1);
      waiting_.drives_.fetch_add(1);
    }
    ~Driver() { waiting_.drivers_.fetch_sub(1); }
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

   private:
    Waiting& waiting_;
  };

  [[noreturn]] void throw_why() const;

  static constexpr int kTurns = 3;         // of other ranks, before a wait counts as one
  static constexpr int64_t kLong = 2'000;  // nanoseconds: longer than most waits

  // Sleeps until the bell rings or the time is over, at most kNap. False: it did not ring.
  bool nap(uint32_t rings, int64_t left_ns) noexcept;

  Bell& bell_;
  Peers* const peers_;
  const int64_t spin_ns_;
  sdk::SpinPolicy yields_;
  std::atomic<bool> aborted_ = false;
  std::atomic<uint32_t> drivers_ = 0;
  std::atomic<uint64_t> drives_ = 0;
  mutable std::mutex mutex_;  // guards why_
  std::optional<sdk::Failure> why_;
};

template <typename Ready>
End Waiting::until(Limit& limit, const Ready& ready) {
  if (ready(limit.is_zero() ? Look::kFull : Look::kQuick)) return End::kReady;
  // Only a hint for the helper, and so no atomic addition, which would wait for what was just written.
  drives_.store(drives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (limit.is_zero()) return aborted() ? End::kAborted : End::kLate;
  // There most waits last until another rank has had its turn, and need not count as one.
  bool is_brief = true;
  for (int i = 0; i < kTurns && gives_turns() && is_brief && !aborted(); ++i) {
    is_brief = give_turn();
    if (ready(Look::kQuick)) return End::kReady;
  }
  const int64_t begin = steady_ns();
  bool is_long = false;
  for (int64_t spun = 0; spun < spin_ns_; spun = steady_ns() - begin) {
    if (!is_long && spun > kLong) {
      is_long = true;
      if (peers_ != nullptr && peers_->shares_processor()) break;
    }
    for (int i = 0; i < 16; ++i) {
      if (ready(Look::kQuick)) return End::kReady;
      relax();
    }
    if (aborted()) return ready(Look::kFull) ? End::kReady : End::kAborted;
    if (limit.passed()) return ready(Look::kFull) ? End::kReady : End::kLate;
  }
  const Driver driver(*this);
  auto yielding_until = sdk::SpinPolicy::Clock::now() + yields_.limit();
  for (;;) {
    if (aborted()) return ready(Look::kFull) ? End::kReady : End::kAborted;
    if (limit.passed()) return ready(Look::kFull) ? End::kReady : End::kLate;
    const sdk::SpinPolicy::Clock::time_point now = sdk::SpinPolicy::Clock::now();
    // With more ranks than processors a yield is another rank's turn, however long that computes.
    if (now < yielding_until && (!polls() || yields_.pays(now))) {
      yields_.yield(now);
      if (ready(Look::kFull)) return End::kReady;
      continue;
    }
    const Sleeper sleeper(*this);
    const uint32_t rings = bell_.rings.load();
    if (ready(Look::kFull)) return End::kReady;
    if (aborted()) return End::kAborted;
    if (nap(rings, limit.left_ns())) yielding_until = sdk::SpinPolicy::Clock::now() + yields_.limit();
    if (ready(Look::kFull)) return End::kReady;
  }
}

template <typename Ready>
void Waiting::sleep_until(const Ready& ready) {
  while (!aborted()) {
    const Sleeper sleeper(*this);
    const uint32_t rings = bell_.rings.load();
    if (ready() || aborted()) return;
    nap(rings, -1);
  }
}

}  // namespace backplane::shm
