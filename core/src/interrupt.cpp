// SPDX-License-Identifier: Apache-2.0
#include "interrupt.hpp"

#include <mutex>

#include "error.hpp"
#include "process.hpp"

namespace backplane::core {
namespace {

struct Hook {
  PerProcess<std::mutex> mutex;
  InterruptHook function = nullptr;
  void* ctx = nullptr;
};

Hook& hook() {
  static auto* const instance = new Hook;  // other threads may use it while the process ends
  return *instance;
}

thread_local uint64_t interruptions_of_thread = 0;

}  // namespace

void set_interrupt_hook(InterruptHook function, void* ctx) {
  const std::lock_guard lock(*hook().mutex);
  hook().function = function;
  hook().ctx = ctx;
  Interruptible::hook_set_.store(function != nullptr, std::memory_order_relaxed);
}

bool Interruptible::ask() {
  InterruptHook function = nullptr;
  void* ctx = nullptr;
  {
    const std::lock_guard lock(*hook().mutex);
    function = hook().function;
    ctx = hook().ctx;
  }
  const bool is_interrupted = function != nullptr && function(ctx) != 0;
  if (is_interrupted) ++interruptions_of_thread;
  return is_interrupted;
}

void Interruptible::refuse() { fail(BP_CANCELLED, "interrupted by the program"); }

uint64_t Interruptible::interruptions() { return interruptions_of_thread; }

}  // namespace backplane::core
