// SPDX-License-Identifier: Apache-2.0
//
// Isolates a backend without BP_BACKEND_BOUNDED, whose functions may hang: calls them on separate threads and waits for
// them no longer than the ABI allows. With BP_BACKEND_BLOCKING_INIT beside that flag, only init is called like that.
// Presents a process group table that keeps the rules of abi/process_group.h even if the backend does not: waits end in
// time, and half a second after abort every work is terminal. A call counts as hung only once the backend has had its
// time: one that begins after an abort has a second of its own.
//
// A call that hangs longer is detached: its thread, work and agent are never freed, and the log gets one line. The
// backend may still write to the buffers of the operation. A call for which there is no thread or memory is not made,
// which the log says as well; only abort, which nothing replaces, then runs on the caller's thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backplane/abi/plugin.h"
#include "backplane/base/executor.hpp"
#include "backplane/base/grace.hpp"
#include "deadline.hpp"

namespace backplane::core {

class Isolation : public std::enable_shared_from_this<Isolation> {
 public:
  // `backend`: its name for messages. `resources`: owns what the backend may use as long as it runs (host, options).
  Isolation(std::string backend, std::shared_ptr<void> resources);
  Isolation(const Isolation&) = delete;
  Isolation& operator=(const Isolation&) = delete;

  // Calls the init handler. `resources` owns what `init` points to. Fails early once `is_cancelled` returns true.
  int32_t init(const bp_backend& backend, const bp_init& init, const std::function<bool()>& is_cancelled,
               bp_agent* agent, bp_error* err);

  const bp_process_group_api& api() const;
  void* self() { return this; }

  // Whether a call hung and was detached.
  bool hung();

 private:
  struct Work;
  struct Table;

  // A call into the backend on a thread of its own. Guarded by mutex_.
  struct Call {
    enum class Phase { kQueued, kRunning, kReturned, kDropped };
    Phase phase = Phase::kQueued;
    Deadline own_time = Deadline::after(base::grace::kPrompt);  // it is not late before, even after an abort
  };
  enum class Outcome { kReturned, kHung, kNotCalled };

  // Calls `body` on another thread and waits. Detaches the call if it has not returned by the limit, or when it is late
  // after an abort. A call that no thread has begun by then is dropped.
  template <typename Body>
  Outcome call(const char* function, Body body, Deadline limit) noexcept;
  // On the thread of the call, before and after its body. False: it was dropped.
  bool begin(Call& call);
  void end(Call& call);
  // When the call is late because of an abort. With mutex_ held.
  Deadline late_at(const Call& call) const { return std::max(abort_deadline_, call.own_time); }
  // Waits for a change until a deadline. With mutex_ held.
  void await_change(std::unique_lock<std::mutex>& lock, Deadline until);
  // Keeps this object for ever. `fault` completes "backend X ...", as in "does not return from abort".
  void detach(const char* fault, const char* function) noexcept;
  // The same, without the lock that the caller holds.
  void detach_unlocked(std::unique_lock<std::mutex>& lock, const char* fault, const char* function) noexcept;
  // The status of the abort, BP_OK if there was none. With mutex_ held.
  int32_t abort_status(bp_error* err) const;

  int32_t submit(const bp_op& op, bp_work** work, bp_error* err);
  int32_t wait(Work& work, int64_t timeout_ns, bp_error* err) noexcept;
  // These need mutex_.
  bool start_wait(const std::shared_ptr<Work>& work, int64_t timeout_ns) noexcept;  // false: no thread or memory
  static int32_t report(Work& work, bp_error* err);                                 // a terminal work's status
  void abandon(Work& work);  // makes it terminal although the backend may still use it

  void cancel(Work& work) noexcept;
  void release(Work& work) noexcept;
  void abort(const bp_error& why) noexcept;
  void destroy() noexcept;

  const std::string backend_;
  const std::shared_ptr<void> resources_;
  bp_agent agent_ = {};
  const bp_process_group_api* inner_ = nullptr;

  std::mutex mutex_;  // never held while the backend is called
  std::condition_variable changed_;
  std::optional<bp_error> abort_cause_;
  Deadline abort_deadline_ = Deadline::never();  // half a second after abort
  bool hung_ = false;
  std::list<std::shared_ptr<Work>> detached_;      // works that the backend may still use
  std::list<std::shared_ptr<Isolation>> self_{1};  // a node for the list of detached isolations

  base::Executor threads_{base::Executor::kUnlimited};  // last, because its tasks use the other members
};

enum class IsolatedCalls { kNone, kInit, kAll };
// Which calls into this backend are isolated: by its flags, unless BACKPLANE_ISOLATE is always or never.
IsolatedCalls isolated_calls(const bp_backend& backend);

}  // namespace backplane::core
