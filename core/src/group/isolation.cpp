// SPDX-License-Identifier: Apache-2.0
#include "group/isolation.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backplane/base/grace.hpp"
#include "backplane/base/owned_op.hpp"
#include "error.hpp"
#include "log.hpp"
#include "process.hpp"

namespace backplane::core {
namespace {

namespace grace = base::grace;

constexpr const char* kHangs = "does not return from";
constexpr const char* kNeverEnds = "leaves operations in flight half a second after";
constexpr int64_t kAskAgainNs = 10 * grace::kMillisecond;
constexpr const char* kNotAsked = "could not be asked, for lack of a thread or of memory, for";

// Logs nothing if there is no memory.
template <typename... Args>
void try_log(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    log(BP_LOG_ERROR, format, std::forward<Args>(args)...);
  } catch (const std::exception&) {
  }
}

// Isolations with a detached call. They are kept for ever.
struct Detached {
  std::mutex mutex;
  std::list<std::shared_ptr<Isolation>> isolations;
};

Detached& detached() {
  static constinit PerProcess<Detached> instance;
  return *instance;
}

}  // namespace

struct Isolation::Work : std::enable_shared_from_this<Isolation::Work> {
  Work(const bp_op& given, int32_t world_size) : op(given, world_size), callers_result(given.result) {
    if (callers_result != nullptr) op.get().result = &result;
    bp_error_init(&error);
  }

  // A copy, because the backend may read it after the caller has returned. Without BP_OP_SYNC: a hung wait is detached
  // alone, a hung submit only with the whole group.
  base::OwnedOp op;
  bp_result result = {sizeof(bp_result), -1, 0, 0};
  bp_result* const callers_result;
  bp_work* inner = nullptr;
  std::shared_ptr<Call> waiting;           // the call of the backend's work_wait, NULL if there is none
  Deadline ask_until = Deadline::never();  // when, after an abort, the attempts to start that call end
  uint32_t cancels = 0;                    // calls of the backend's work_cancel
  bool done = false;                       // terminal
  bool abandoned = false;                  // terminal, but the backend may still use `inner` and the buffers
  int32_t status = BP_AGAIN;
  bp_error error;
  std::list<std::shared_ptr<Work>> owner{1};  // the caller's reference, until release
};

Isolation::Isolation(std::string backend, std::shared_ptr<void> resources)
    : backend_(std::move(backend)), resources_(std::move(resources)) {
  detached();  // so that it exists when there is no memory
}

bool Isolation::hung() {
  const std::lock_guard lock(mutex_);
  return hung_;
}

void Isolation::detach(const char* fault, const char* function) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(hung_, true)) return;
  }
  {
    Detached& all = detached();
    const std::lock_guard lock(all.mutex);
    self_.front() = shared_from_this();
    all.isolations.splice(all.isolations.end(), self_);
  }
  try_log("backend {} {} {}; its thread and buffers are kept, and its group is unusable. Run 'backplane check {}'",
          backend_, fault, function, backend_);
}

void Isolation::detach_unlocked(std::unique_lock<std::mutex>& lock, const char* fault, const char* function) noexcept {
  lock.unlock();
  detach(fault, function);
  lock.lock();
}

bool Isolation::begin(Call& call) {
  const std::lock_guard lock(mutex_);
  if (call.phase != Call::Phase::kQueued) return false;
  call.phase = Call::Phase::kRunning;
  call.own_time = Deadline::after(abort_cause_ ? grace::kPrompt : 0);
  return true;
}

void Isolation::end(Call& call) {
  const std::lock_guard lock(mutex_);
  call.phase = Call::Phase::kReturned;
  changed_.notify_all();
}

template <typename Body>
Isolation::Outcome Isolation::call(const char* function, Body body, Deadline limit) noexcept {
  const char* reason = "no thread could be started for it";
  try {
    const auto made = std::make_shared<Call>();
    threads_.add([this, made, body = std::move(body)]() mutable {
      if (!begin(*made)) return;
      body();
      end(*made);
    });
    std::unique_lock lock(mutex_);
    while (made->phase != Call::Phase::kReturned) {
      const Deadline until = std::min(limit, late_at(*made));
      if (until.passed()) break;
      await_change(lock, until);
    }
    if (made->phase == Call::Phase::kReturned) return Outcome::kReturned;
    if (made->phase == Call::Phase::kRunning) {
      lock.unlock();
      detach(kHangs, function);
      return Outcome::kHung;
    }
    made->phase = Call::Phase::kDropped;
  } catch (const std::bad_alloc&) {
    reason = "out of memory";
  } catch (const std::exception&) {  // of the thread
  }
  try_log("backend {}: {} is not called: {}", backend_, function, reason);
  return Outcome::kNotCalled;
}

void Isolation::await_change(std::unique_lock<std::mutex>& lock, Deadline until) {
  if (until.infinite()) return changed_.wait(lock);
  changed_.wait_until(lock, until.at());
}

int32_t Isolation::init(const bp_backend& backend, const bp_init& init, const std::function<bool()>& is_cancelled,
                        bp_agent* agent, bp_error* err) {
  struct Start {
    bp_agent agent = {};
    bp_error err;
    int32_t status = BP_AGAIN;
  };
  auto start = std::make_shared<Start>();
  start->agent.struct_size = sizeof(bp_agent);
  bp_error_init(&start->err);
  threads_.add([this, start, &backend, init] {
    const int32_t status = backend.init(&backend, &init, &start->agent, &start->err);
    const std::lock_guard lock(mutex_);
    start->status = status;
    changed_.notify_all();
  });
  const Deadline deadline = Deadline::after(init.timeout_ns).later(grace::kAbort);
  Deadline cancelled = Deadline::never();
  std::unique_lock lock(mutex_);
  while (start->status == BP_AGAIN && !deadline.passed() && !cancelled.passed()) {
    changed_.wait_for(lock, std::chrono::milliseconds(20));
    if (!cancelled.infinite()) continue;
    lock.unlock();  // it may call the program
    if (is_cancelled()) cancelled = Deadline::after(grace::kAbort);
    lock.lock();
  }
  if (start->status == BP_AGAIN) {
    lock.unlock();
    detach(kHangs, "init");
    return bp_error_set(err, cancelled.infinite() ? BP_TIMEOUT : BP_CANCELLED, 0, -1,
                        "its init did not return in time; the thread is detached");
  }
  if (start->status != BP_OK) {
    return bp_error_set(err, start->status, start->err.native_code, start->err.peer_rank, start->err.text);
  }
  agent_ = start->agent;
  *agent = agent_;
  inner_ = static_cast<const bp_process_group_api*>(agent_.api);
  return BP_OK;
}

int32_t Isolation::abort_status(bp_error* err) const {
  if (!abort_cause_) return BP_OK;
  return bp_error_set(err, abort_cause_->status, abort_cause_->native_code, abort_cause_->peer_rank,
                      abort_cause_->text);
}

int32_t Isolation::submit(const bp_op& op, bp_work** out, bp_error* err) {
  auto work = std::make_shared<Work>(op, agent_.world_size);
  {
    const std::lock_guard lock(mutex_);
    if (const int32_t status = abort_status(err); status != BP_OK) return status;
  }
  const Outcome outcome = call(
      "submit",
      [this, work] { work->status = inner_->submit(agent_.self, &work->op.get(), &work->inner, &work->error); },
      Deadline::after(op.timeout_ns < 0 ? BP_NO_TIMEOUT : std::max(op.timeout_ns, grace::kPrompt)));
  const std::lock_guard lock(mutex_);
  if (outcome != Outcome::kReturned) {
    if (const int32_t status = abort_status(err); status != BP_OK) return status;
    if (outcome == Outcome::kHung) return bp_error_set(err, BP_TIMEOUT, 0, -1, "its submit did not return in time");
    return bp_error_set(err, BP_RESOURCE, 0, -1, "no thread or memory is left for its submit");
  }
  if (work->status == BP_OK && work->inner != nullptr) {
    work->status = BP_AGAIN;
    work->owner.front() = work;
    *out = reinterpret_cast<bp_work*>(work.get());
    return BP_OK;
  }
  work->done = true;
  return report(*work, err);
}

int32_t Isolation::report(Work& work, bp_error* err) {
  if (!work.abandoned && work.callers_result != nullptr) {
    work.callers_result->source = work.result.source;
    work.callers_result->bytes = work.result.bytes;
    work.callers_result->tag = work.result.tag;
  }
  if (work.status == BP_OK) return BP_OK;
  return bp_error_set(err, work.status, work.error.native_code, work.error.peer_rank, work.error.text);
}

void Isolation::abandon(Work& work) {
  work.done = true;
  work.abandoned = true;
  work.status = abort_cause_->status;
  work.error = *abort_cause_;
}

bool Isolation::start_wait(const std::shared_ptr<Work>& work, int64_t timeout_ns) noexcept try {
  auto made = std::make_shared<Call>();
  threads_.add([this, work, made, timeout_ns] {
    if (!begin(*made)) return;
    bool was_late = false;
    {
      const std::lock_guard lock(mutex_);
      was_late = abort_deadline_.passed();
    }
    bp_error err;
    bp_error_init(&err);
    const int32_t status = inner_->work_wait(agent_.self, work->inner, timeout_ns, &err);
    const bool never_ends = status == BP_AGAIN && was_late;
    if (never_ends) detach(kNeverEnds, "abort");  // before the caller gets its error, and can destroy the agent
    const std::lock_guard lock(mutex_);
    work->waiting.reset();
    if (never_ends && !work->done) abandon(*work);
    if (!work->done && status != BP_AGAIN) {
      work->done = true;
      work->status = status;
      work->error = err;
    }
    changed_.notify_all();
  });
  work->waiting = std::move(made);
  work->ask_until = Deadline::never();
  return true;
} catch (const std::exception&) {  // no thread or no memory
  if (work->ask_until.infinite()) work->ask_until = Deadline::after(grace::kPrompt);
  return false;
}

// A wait that cannot be made says nothing about the operation: it is repeated, and the operation stays in flight.
int32_t Isolation::wait(Work& work, int64_t timeout_ns, bp_error* err) noexcept {
  const Deadline wanted = Deadline::after(timeout_ns);
  const Deadline limit = wanted.later(grace::kReturn);
  std::unique_lock lock(mutex_);
  bool started = false;
  while (!work.done) {
    if (hung_ && abort_deadline_.passed()) {  // not asked again: many works would each take half a second
      abandon(work);
      break;
    }
    if (!work.waiting) {
      if (started && wanted.passed()) return BP_AGAIN;
      started = start_wait(work.shared_from_this(), wanted.left_ns());
      if (!started) {
        if (std::max(abort_deadline_, work.ask_until).passed()) {
          abandon(work);
          detach_unlocked(lock, kNotAsked, "work_wait");
        } else if (wanted.passed()) {
          return BP_AGAIN;
        } else {
          await_change(lock, std::min(wanted, Deadline::after(kAskAgainNs)));
        }
        continue;
      }
    }
    const std::shared_ptr<Call> asked = work.waiting;
    await_change(lock, std::min(limit, late_at(*asked)));
    if (work.done || work.waiting != asked) continue;
    if (late_at(*asked).passed()) {
      const bool hangs = asked->phase == Call::Phase::kRunning;
      if (!hangs) asked->phase = Call::Phase::kDropped;
      abandon(work);
      detach_unlocked(lock, hangs ? kHangs : kNotAsked, "work_wait");
    } else if (limit.passed()) {
      return BP_AGAIN;
    }
  }
  return report(work, err);
}

// Does not wait longer for the backend than its caller can: a slow machine is no fault of the backend. `release` does.
void Isolation::cancel(Work& work) noexcept try {
  const std::shared_ptr<Work> kept = work.shared_from_this();
  const auto made = std::make_shared<Call>();
  const Deadline limit = Deadline::after(grace::kReturn);
  std::unique_lock lock(mutex_);
  if (kept->done || (hung_ && abort_deadline_.passed())) return;
  threads_.add([this, kept, made] {
    begin(*made);
    inner_->work_cancel(agent_.self, kept->inner);
    {
      const std::lock_guard lock(mutex_);
      --kept->cancels;
    }
    end(*made);
  });
  ++kept->cancels;
  while (made->phase != Call::Phase::kReturned && !limit.passed()) await_change(lock, limit);
} catch (const std::exception& e) {
  try_log("backend {}: work_cancel is not called: {}", backend_, e.what());
}

void Isolation::release(Work& work) noexcept {
  std::list<std::shared_ptr<Work>> owner;
  owner.splice(owner.end(), work.owner);
  const Deadline limit = Deadline::after(grace::kPrompt);
  bool may_be_used = false;
  bool is_cancelling = false;
  {
    std::unique_lock lock(mutex_);
    while (work.cancels > 0 && !hung_ && !limit.passed()) await_change(lock, limit);
    is_cancelling = work.cancels > 0;
    may_be_used = work.abandoned || work.waiting || is_cancelling || (hung_ && abort_deadline_.passed());
  }
  if (is_cancelling) detach(kHangs, "work_cancel");
  if (!may_be_used) {
    const auto release = [this, inner = work.inner] { inner_->work_release(agent_.self, inner); };
    const Outcome outcome = call("work_release", release, Deadline::after(grace::kPrompt));
    if (outcome == Outcome::kReturned) return;
    if (outcome == Outcome::kNotCalled) detach(kNotAsked, "work_release");
  }
  const std::lock_guard lock(mutex_);
  detached_.splice(detached_.end(), owner);
}

void Isolation::abort(const bp_error& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (abort_cause_) return;
    abort_cause_ = why;
    abort_deadline_ = Deadline::after(grace::kAbort);
    changed_.notify_all();
  }
  const auto abort = [this, cause = &*abort_cause_] {  // not set again
    {
      const std::lock_guard lock(mutex_);
      abort_deadline_ = Deadline::after(grace::kAbort);  // the time of the backend begins with its abort
    }
    inner_->abort(agent_.self, cause);
  };
  if (call("abort", abort, Deadline::never()) == Outcome::kNotCalled) abort();
}

void Isolation::destroy() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (hung_) return;
    abort_deadline_ = Deadline::never();
  }
  const auto destroy = [this] { inner_->destroy(agent_.self); };
  if (call("destroy", destroy, Deadline::after(grace::kDestroy)) == Outcome::kNotCalled) {
    detach(kNotAsked, "destroy");
  }
}

}  // namespace backplane::core
