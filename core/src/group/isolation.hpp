// SPDX-License-Identifier: Apache-2.0
//
// A backend that does not declare BP_BACKEND_BOUNDED is not trusted to come back: its functions are called on threads
// of the core's own, and the caller waits for them no longer than the ABI allows. Towards the group this is a process
// group table like any other, and it keeps the rules of abi/process_group.h whatever the backend behind it does: waits
// end in time, and half a second after abort everything is terminal.
//
// A call that has not come back by then is left behind: its thread, the work and the agent stay as they are, for ever,
// and one line in the log says so. The buffers of its operation may still be written to.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backplane/abi/plugin.h"
#include "backplane/base/executor.hpp"
#include "deadline.hpp"

namespace backplane::core {

class Isolation : public std::enable_shared_from_this<Isolation> {
 public:
  // `backend` stands in messages; `keep` is whatever the backend may use as long as it runs (host, options).
  Isolation(std::string backend, std::shared_ptr<void> keep);
  Isolation(const Isolation&) = delete;
  Isolation& operator=(const Isolation&) = delete;

  // The init handler. `init` and what it points to must stay valid as long as `keep`. `given_up` is asked while it
  // waits.
  int32_t init(const bp_backend& backend, const bp_init& init, const std::function<bool()>& given_up, bp_agent* agent,
               bp_error* err);

  const bp_process_group_api& api() const;
  void* self() { return this; }

  // Is anything left behind?
  bool wedged();

 private:
  struct OpCopy;
  struct Work;
  struct Table;

  // Calls `body` on another thread and waits. False: it has not returned by the limit, or half a second after abort;
  // its thread is detached then.
  bool call(const char* function, std::function<void()> body, Deadline limit);
  bool over();  // half a second after abort; with mutex_ held
  void leave_behind(const char* function);
  int32_t refused(bp_error* err);  // the cause of the abort, if there was one; else BP_OK. With mutex_ held

  int32_t submit(const bp_op& op, bp_work** work, bp_error* err);
  int32_t wait(Work& work, int64_t timeout_ns, bp_error* err);
  void start_wait(const std::shared_ptr<Work>& work, int64_t timeout_ns);
  int32_t answer(Work& work, bp_error* err);  // with mutex_ held
  void decree(Work& work);                    // terminal without the backend's word; with mutex_ held
  void cancel(Work& work);
  void release(Work& work);
  void abort(const bp_error& why);
  void destroy();

  const std::string backend_;
  const std::shared_ptr<void> keep_;
  bp_agent agent_ = {};
  const bp_process_group_api* inner_ = nullptr;

  std::mutex mutex_;  // never held while the backend is called
  std::condition_variable changed_;
  std::optional<bp_error> why_;
  Deadline end_ = Deadline::never();  // after abort
  bool wedged_ = false;
  std::vector<std::shared_ptr<Work>> left_;  // works that the backend may still use

  base::Executor threads_{base::Executor::kUnlimited};  // last: its tasks use all of the above
};

// Should calls into this backend be isolated? By its flag, unless BACKPLANE_ISOLATE says always or never.
bool isolated(const bp_backend& backend);

}  // namespace backplane::core
