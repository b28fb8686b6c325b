// SPDX-License-Identifier: Apache-2.0
#include "group/isolation.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "backplane/base/grace.hpp"
#include "backplane/base/owned_op.hpp"
#include "error.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

namespace grace = base::grace;

// Those left behind are kept alive here.
void keep_for_ever(std::shared_ptr<Isolation> isolation) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const kept = new std::set<std::shared_ptr<Isolation>>;
  const std::lock_guard lock(*mutex);
  kept->insert(std::move(isolation));
}

}  // namespace

struct Isolation::Work : std::enable_shared_from_this<Isolation::Work> {
  Work(const bp_op& given, int32_t world_size) : op(given, world_size), callers_result(given.result) {
    if (callers_result != nullptr) op.get().result = &result;
    bp_error_init(&error);
  }

  // What the backend may look at after the caller has left. Without BP_OP_SYNC: a wait can be left, a submit only with
  // the whole group.
  base::OwnedOp op;
  bp_result result = {sizeof(bp_result), -1, 0, 0};
  bp_result* const callers_result;
  bp_work* inner = nullptr;
  bool busy = false;     // a wait is inside the backend
  bool done = false;     // terminal
  bool decreed = false;  // without the backend's word: it may still use `inner` and the buffers
  int32_t status = BP_AGAIN;
  bp_error error;
  std::shared_ptr<Work> owner;  // the caller's claim, until release
};

Isolation::Isolation(std::string backend, std::shared_ptr<void> keep)
    : backend_(std::move(backend)), keep_(std::move(keep)) {}

bool Isolation::over() { return end_.passed(); }

bool Isolation::wedged() {
  const std::lock_guard lock(mutex_);
  return wedged_;
}

void Isolation::leave_behind(const char* function) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(wedged_, true)) return;
  }
  write_log(BP_LOG_ERROR, fmt::format("backend {} does not come back from {}; its thread is left behind and its group "
                                      "is out of use. Run 'backplane check' on it",
                                      backend_, function));
  keep_for_ever(shared_from_this());
}

bool Isolation::call(const char* function, std::function<void()> body, Deadline limit) {
  struct Call {
    bool done = false;
  };
  auto state = std::make_shared<Call>();
  threads_.add([this, state, body = std::move(body)] {
    body();
    const std::lock_guard lock(mutex_);
    state->done = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  for (;;) {
    if (state->done) return true;
    const Deadline until = std::min(limit, end_);
    if (until.passed()) break;
    if (until.infinite()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, until.at());
    }
  }
  lock.unlock();
  leave_behind(function);
  return false;
}

int32_t Isolation::init(const bp_backend& backend, const bp_init& init, const std::function<bool()>& given_up,
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
  Deadline end = Deadline::never();
  std::unique_lock lock(mutex_);
  while (start->status == BP_AGAIN && !deadline.passed() && !end.passed()) {
    changed_.wait_for(lock, std::chrono::milliseconds(20));
    if (end.infinite() && given_up()) end = Deadline::after(grace::kAbort);
  }
  if (start->status == BP_AGAIN) {
    lock.unlock();
    leave_behind("init");
    return bp_error_set(err, end.infinite() ? BP_TIMEOUT : BP_CANCELLED, 0, -1,
                        "its init did not return in time; the thread in it is left behind");
  }
  if (start->status != BP_OK) {
    return bp_error_set(err, start->status, start->err.native_code, start->err.peer_rank, start->err.text);
  }
  agent_ = start->agent;
  *agent = agent_;
  inner_ = static_cast<const bp_process_group_api*>(agent_.api);
  return BP_OK;
}

int32_t Isolation::refused(bp_error* err) {
  return why_ ? bp_error_set(err, why_->status, why_->native_code, why_->peer_rank, why_->text) : BP_OK;
}

int32_t Isolation::submit(const bp_op& op, bp_work** out, bp_error* err) {
  auto work = std::make_shared<Work>(op, agent_.world_size);
  {
    const std::lock_guard lock(mutex_);
    if (const int32_t status = refused(err); status != BP_OK) return status;
  }
  const bool back = call(
      "submit",
      [this, work] { work->status = inner_->submit(agent_.self, &work->op.get(), &work->inner, &work->error); },
      Deadline::after(op.timeout_ns < 0 ? BP_NO_TIMEOUT : std::max(op.timeout_ns, grace::kPrompt)));
  if (!back) {
    const std::lock_guard lock(mutex_);
    if (const int32_t status = refused(err); status != BP_OK) return status;
    return bp_error_set(err, BP_TIMEOUT, 0, -1, "its submit did not return in time");
  }
  const std::lock_guard lock(mutex_);
  if (work->status == BP_OK && work->inner != nullptr) {
    work->status = BP_AGAIN;
    work->owner = work;
    *out = reinterpret_cast<bp_work*>(work.get());
    return BP_OK;
  }
  work->done = true;
  return answer(*work, err);
}

int32_t Isolation::answer(Work& work, bp_error* err) {
  if (!work.decreed && work.callers_result != nullptr) {
    work.callers_result->source = work.result.source;
    work.callers_result->bytes = work.result.bytes;
    work.callers_result->tag = work.result.tag;
  }
  if (work.status == BP_OK) return BP_OK;
  return bp_error_set(err, work.status, work.error.native_code, work.error.peer_rank, work.error.text);
}

void Isolation::decree(Work& work) {
  work.done = true;
  work.decreed = true;
  work.status = why_->status;
  work.error = *why_;
}

void Isolation::start_wait(const std::shared_ptr<Work>& work, int64_t timeout_ns) {
  work->busy = true;
  threads_.add([this, work, timeout_ns] {
    bp_error err;
    bp_error_init(&err);
    const int32_t status = inner_->work_wait(agent_.self, work->inner, timeout_ns, &err);
    const std::lock_guard lock(mutex_);
    work->busy = false;
    if (status != BP_AGAIN && !work->done) {
      work->done = true;
      work->status = status;
      work->error = err;
    }
    changed_.notify_all();
  });
}

int32_t Isolation::wait(Work& work, int64_t timeout_ns, bp_error* err) {
  const Deadline wanted = Deadline::after(timeout_ns);
  const Deadline limit = wanted.later(grace::kReturn);
  std::unique_lock lock(mutex_);
  bool asked = false;
  for (;;) {
    if (work.done) return answer(work, err);
    if (over()) {
      decree(work);
      lock.unlock();
      leave_behind("work_wait");
      lock.lock();
      return answer(work, err);
    }
    if (!work.busy) {
      if (asked && wanted.passed()) return BP_AGAIN;
      asked = true;
      start_wait(work.shared_from_this(), wanted.left_ns());
    }
    const Deadline until = std::min(limit, end_);
    if (until.infinite()) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, until.at()) == std::cv_status::timeout && limit.passed() && !over()) {
      return work.done ? answer(work, err) : BP_AGAIN;
    }
  }
}

void Isolation::cancel(Work& work) {
  const std::shared_ptr<Work> kept = work.shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    if (kept->done) return;
  }
  call(
      "work_cancel", [this, kept] { inner_->work_cancel(agent_.self, kept->inner); }, Deadline::after(grace::kReturn));
}

void Isolation::release(Work& work) {
  const std::shared_ptr<Work> kept = std::exchange(work.owner, nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (kept->decreed || kept->busy) return left_.push_back(kept);
  }
  call(
      "work_release", [this, kept] { inner_->work_release(agent_.self, kept->inner); },
      Deadline::after(grace::kPrompt));
}

void Isolation::abort(const bp_error& why) {
  {
    const std::lock_guard lock(mutex_);
    if (why_) return;
    why_ = why;
    end_ = Deadline::after(grace::kAbort);
    changed_.notify_all();
  }
  call(
      "abort", [this, why] { inner_->abort(agent_.self, &why); }, Deadline::after(grace::kAbort));
}

void Isolation::destroy() {
  {
    const std::lock_guard lock(mutex_);
    if (wedged_) return;
    end_ = Deadline::never();
  }
  call(
      "destroy", [this] { inner_->destroy(agent_.self); }, Deadline::after(grace::kDestroy));
}

struct Isolation::Table {
  static Isolation& of(void* self) { return *static_cast<Isolation*>(self); }
  static Work& of(bp_work* work) { return *reinterpret_cast<Work*>(work); }

  static int32_t submit(void* self, const bp_op* op, bp_work** work, bp_error* err) {
    return guarded(err, [&] { return of(self).submit(*op, work, err); });
  }
  static int32_t work_test(void* self, bp_work* work, bp_error* err) {
    return guarded(err, [&] { return of(self).wait(of(work), 0, err); });
  }
  static int32_t work_wait(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
    return guarded(err, [&] { return of(self).wait(of(work), timeout_ns, err); });
  }
  static void work_cancel(void* self, bp_work* work) { of(self).cancel(of(work)); }
  static void work_release(void* self, bp_work* work) { of(self).release(of(work)); }
  static void abort(void* self, const bp_error* why) { of(self).abort(*why); }
  static void destroy(void* self) { of(self).destroy(); }
  static const void* extension(void*, const char*) { return nullptr; }

  // No thread, no memory: exceptions become statuses.
  template <typename Body>
  static int32_t guarded(bp_error* err, Body body) {
    try {
      return body();
    } catch (const std::exception& e) {
      return bp_error_set(err, BP_RESOURCE, 0, -1, e.what());
    }
  }
};

const bp_process_group_api& Isolation::api() const {
  static constexpr bp_process_group_api kApi = {sizeof(bp_process_group_api),
                                                0,
                                                Table::submit,
                                                Table::work_test,
                                                Table::work_wait,
                                                Table::work_cancel,
                                                Table::work_release,
                                                Table::abort,
                                                Table::destroy,
                                                Table::extension};
  return kApi;
}

bool isolated(const bp_backend& backend) {
  const char* wish = std::getenv("BACKPLANE_ISOLATE");
  const std::string text = wish == nullptr || *wish == '\0' ? "auto" : wish;
  if (text == "always") return true;
  if (text == "never") return false;
  if (text != "auto") fail(BP_INVALID, "BACKPLANE_ISOLATE is '{}'; it must be auto, always or never", text);
  return (backend.flags & (BP_BACKEND_BOUNDED | BP_BACKEND_BLOCKING_INIT)) != BP_BACKEND_BOUNDED;
}

}  // namespace backplane::core
