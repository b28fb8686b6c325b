// SPDX-License-Identifier: Apache-2.0
//
// A call of a peer that this worker serves, and the one whose function runs on the current thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "deadline.hpp"
#include "error.hpp"
#include "process.hpp"
#include "rpc/functions.hpp"
#include "rpc/payload.hpp"
#include "rpc/wire.hpp"

namespace backplane::core::rpc {

class Worker;

struct InboundCall : std::enable_shared_from_this<InboundCall> {
  const ProcessMark process = ProcessMark::current();
  std::shared_ptr<Worker> worker;
  int32_t from = -1;
  Header header;
  std::shared_ptr<Payload> payload;
  std::optional<Function> function;  // none: no function of that name is registered
  bool is_inline = false;            // runs on the thread that received it
  const Deadline::Clock::time_point arrived = Deadline::Clock::now();
  std::atomic<bool> started = false;
  std::atomic<bool> ended = false;  // the function has returned; the caller may have the reply already
  std::atomic<bool> cancelled = false;

  // The call whose function runs on this thread, or NULL.
  static inline thread_local InboundCall* current = nullptr;

  // Whether this thread is that of a fork, which has neither the worker nor its threads.
  static bool is_inherited() { return current != nullptr && !(current->process == ProcessMark::current()); }
  // Whether this thread runs an inline function, on which no thread may wait.
  static bool inside_inline() { return current != nullptr && current->is_inline; }
  // Throws BP_INVALID inside an inline function: it occupies the thread that receives messages.
  static void require_may_wait() {
    if (!inside_inline()) return;
    fail(BP_INVALID, "the inline function '{}' must not call workers or wait; register it with register_function",
         current->header.function);
  }
};

}  // namespace backplane::core::rpc
