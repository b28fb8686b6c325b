// SPDX-License-Identifier: Apache-2.0
//
// The program's interruption hook (bp_set_interrupt_hook): threads of the program that block in a function of the API
// call it from time to time. Threads of the core and of plugins never do.
#pragma once

#include <atomic>
#include <cstdint>

#include "deadline.hpp"

namespace backplane::core {

using InterruptHook = int32_t (*)(void* ctx);

void set_interrupt_hook(InterruptHook hook, void* ctx);

class Interruptible {
 public:
  // While it lives, waits of this thread call the hook, if one is set.
  Interruptible() : entered_(is_hook_set() && !inside_) {
    if (entered_) inside_ = true;
  }
  ~Interruptible() {
    if (entered_) inside_ = false;
  }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  // Whether this thread calls the hook.
  static bool active() { return is_hook_set() && inside_; }
  // When a wait until `deadline` must next call the hook: after at most 100 ms if this thread calls it.
  static Deadline next_check(Deadline deadline) {
    return active() ? std::min(deadline, Deadline::after(kCheckNs)) : deadline;
  }
  // Calls the hook. False on a thread that does not. Must not be called under a lock.
  static bool interrupted() { return active() && ask(); }
  // The same on any thread.
  static bool hook_interrupts() { return is_hook_set() && ask(); }
  // Throws BP_CANCELLED if the hook interrupts.
  static void check() {
    if (interrupted()) refuse();
  }
  // For a loop that iterates more often: calls the hook when `next`, initially next_check(), has passed.
  static void check(Deadline* next) {
    if (!next->passed()) return;
    check();
    *next = next_check(Deadline::never());
  }
  [[noreturn]] static void refuse();
  // How often the hook has interrupted this thread.
  static uint64_t interruptions();

 private:
  friend void set_interrupt_hook(InterruptHook hook, void* ctx);
  static constexpr int64_t kCheckNs = INT64_C(100) * 1000000;
  static bool ask();
  // Checked first: a thread-local variable of a library costs a call.
  static bool is_hook_set() { return hook_set_.load(std::memory_order_relaxed); }

  static inline std::atomic<bool> hook_set_ = false;
  static inline thread_local bool inside_ = false;
  const bool entered_;
};

}  // namespace backplane::core
