// SPDX-License-Identifier: Apache-2.0
#include "group/group.hpp"

#include <algorithm>

#include "group/pass.hpp"
#include "group/watchdog.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

bp_error report(const Error& error) {
  bp_error err;
  bp_error_init(&err);
  bp_error_set(&err, error.status(), error.native_code(), error.peer_rank(), error.what());
  return err;
}

}  // namespace

Group::Group(GroupConfig config, std::shared_ptr<void> job, std::shared_ptr<Reporter> reporter)
    : config_(std::move(config)),
      job_(std::move(job)),
      reporter_(std::move(reporter)),
      watchdog_(std::make_shared<Watchdog>(*this)) {}

Group::~Group() { destroy(); }

std::string Group::backend_id(uint32_t memory) const {
  for (const ChosenBackend& backend : config_.backends) {
    if (!backend.memory || *backend.memory == memory) return backend.member->id;
  }
  return {};
}

void Group::refuse() const {
  if (!member()) fail(BP_INVALID, "this rank is not a member of group '{}'", config_.name);
  if (state_.load() == State::kDestroyed) fail(BP_INVALID, "group '{}' has been destroyed", config_.name);
  const std::lock_guard lock(mutex_);
  if (caused_by_loss(*cause_)) throw Error(*cause_);
  throw Error(cause_->status(), fmt::format("group '{}' is broken: {}", config_.name, cause_->what()),
              cause_->peer_rank(), cause_->native_code());
}

std::string Group::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_ ? cause_->what() : "";
}

void Group::check_whole() {
  if (state_.load() != State::kActive || !member()) refuse();
}

std::vector<std::shared_ptr<Request>> Group::submit(const bp_op* const* ops, size_t count,
                                                    const std::function<void()>& deliver) {
  const Pass pass(*this);
  std::vector<Plan> plans;  // nothing is started unless all are sound
  for (size_t i = 0; i < count; ++i) plans.push_back(plan(*ops[i]));
  std::vector<std::shared_ptr<Request>> requests;
  try {
    for (size_t i = 0; i < count; ++i) {
      const bool more = i + 1 < count && begins_together(plans[i], plans[i + 1]);
      requests.push_back(start_request(&plans[i], more ? BP_OP_MORE : 0, deliver));
    }
  } catch (...) {
    give_up(requests);
    throw;
  }
  return requests;
}

// Two that follow each other in a batch: may the backend be told?
bool Group::begins_together(const Plan& one, const Plan& next) {
  const bool are_messages = !collective(one.valid.op.kind) && !collective(next.valid.op.kind);
  return are_messages && one.agent == next.agent && one.agent->device() != nullptr;
}

// Ends requests whose caller will not learn of them; afterwards their buffers are free.
void Group::give_up(const std::vector<std::shared_ptr<Request>>& requests) {
  for (const auto& request : requests) request->cancel();
  if (!all_end(requests, Deadline::after(base::grace::kCancel))) {
    abort(Error(BP_CANCELLED, "a batch failed to start and could not be taken back"));
    all_end(requests, Deadline::never());
  }
}

std::shared_ptr<Request> Group::start_request(Plan* plan, uint64_t flags, const std::function<void()>& deliver) {
  const uint64_t entry = number(plan, flags);
  Started started;
  started.group = shared_from_this();
  started.agent = plan->agent;
  started.native = plan->native;
  started.number = entry;
  started.valid = plan->valid;
  started.valid.adopt(plan->valid);
  started.deadline = Deadline::after(started.valid.op.timeout_ns);
  started.deliver = deliver;
  if (started.valid.op.kind == BP_RECV) {
    started.result = std::make_shared<bp_result>(bp_result{sizeof(bp_result), -1, 0, 0});
    started.callers_result = std::exchange(started.valid.op.result, started.result.get());
  }
  try {
    const bool task = !plan->native || compares_first(plan->valid.op);
    return task ? start_task(std::move(started)) : start_native(std::move(started));
  } catch (const Error& e) {
    recorder_.finish(entry, e.status());
    throw failure(e, plan->valid, !plan->native);
  } catch (const std::exception& e) {  // no memory, no thread
    recorder_.finish(entry, BP_RESOURCE);
    throw failure(Error(BP_RESOURCE, e.what()), plan->valid, true);
  }
}

std::shared_ptr<Request> Group::start_task(Started started) {
  auto task = std::make_shared<TaskRequest>(std::move(started));
  watchdog_->expect(task->overdue());
  const std::lock_guard lock(mutex_);
  const auto entry = requests_.emplace(task.get(), task).first;
  try {
    engine_.add([task] { task->perform(); });
  } catch (...) {  // no thread
    requests_.erase(entry);
    throw;
  }
  return task;
}

std::shared_ptr<Request> Group::start_native(Started started) {
  Agent& agent = *started.agent;
  const uint64_t entry = started.number;
  bp_error err;
  bp_error_init(&err);
  bp_work* work = nullptr;
  const int32_t status = agent.api().submit(agent.self(), &started.valid.op, &work, &err);
  if (status != BP_OK) throw_report(status, err, "");
  auto request = std::make_shared<NativeRequest>(std::move(started), work);
  if (work == nullptr) {
    recorder_.finish(entry, BP_OK);
    return request;
  }
  keep(request);
  try {
    watchdog_->expect(request->overdue());  // after the fact, so that what is done at once needs no thread
  } catch (const Error&) {
    give_up({request});
    throw;
  }
  return request;
}

Error Group::labelled(const Error& error, const ValidOp& valid) const {
  const bp_op& op = valid.op;
  std::string text = fmt::format("rank {} of group '{}': {} #{}: {}", config_.rank, config_.name,
                                 describe(op, valid.count, valid.other), op.seq, error.what());
  if (error.status() == BP_TIMEOUT) text += fmt::format(" (after {} s)", seconds(op.timeout_ns));
  return Error(error.status(), text, error.peer_rank(), error.native_code());
}

Error Group::failure(const Error& error, const ValidOp& valid, bool begun) {
  Error known = explained(error);
  if (caused_by_loss(known)) {
    if (collective(valid.op.kind)) abort(known);
    return known;
  }
  const std::optional<Error> cause = cause_behind(error);
  Error whole = labelled(cause ? *cause : error, valid);
  if (collective(valid.op.kind) && (whole.status() == BP_TIMEOUT || whole.status() == BP_INVALID)) {
    whole = agreed(whole, valid);
  }
  // A backend that answers "unsupported" has done nothing; whatever else went wrong may have gone right on other ranks.
  if (collective(valid.op.kind) && (begun || error.status() != BP_UNSUPPORTED)) abort(whole);
  return whole;
}

// A connection that breaks is often but the first sign of something that the ranks are about to be told: then that is
// what all of them report. The wait is paid by operations that fail for want of a peer.
std::optional<Error> Group::cause_behind(const Error& error) {
  if (!reporter_ || (error.status() != BP_PEER_LOST && error.status() != BP_INTERNAL)) return std::nullopt;
  std::unique_lock lock(mutex_);
  broken_.wait_for(lock, std::chrono::nanoseconds(base::grace::kCause),
                   [this] { return cause_ || state_.load() != State::kActive; });
  return cause_;
}

void Group::abort(const Error& cause) {
  const Presence presence(*this);  // destroy waits, so that the agents stay
  {
    const std::lock_guard lock(mutex_);
    if (cause_ || state_.load() != State::kActive) return;
    cause_.emplace(cause);
    State expected = State::kActive;
    if (!state_.compare_exchange_strong(expected, State::kBroken)) return;
  }
  broken_.notify_all();
  abort_agents(cause);
  end_start(cause);
  dump(cause.what());
}

void Group::abort_agents(const Error& cause) {
  const bp_error why = report(cause);
  std::vector<Agent*> agents;
  {
    const std::lock_guard lock(mutex_);  // they may still be starting
    for (const auto& agent : agents_) agents.push_back(agent.get());
  }
  for (Agent* agent : agents) agent->abort(why);
}

// Requests that the caller dropped are ended here, too, from time to time, so that they do not pile up.
void Group::keep(const std::shared_ptr<Request>& request) {
  constexpr size_t kSweepAt = 64;
  std::vector<std::shared_ptr<Request>> dropped;
  {
    const std::lock_guard lock(mutex_);
    requests_.emplace(request.get(), request);
    if (requests_.size() % kSweepAt == 0) {
      for (const auto& entry : requests_) {
        if (entry.second.use_count() == 1) dropped.push_back(entry.second);
      }
    }
  }
  for (const auto& r : dropped) {
    try {
      r->test();
    } catch (const Error&) {  // nobody is left to be told
    }
  }
}

void Group::forget(Request* request, uint64_t number, int32_t status) {
  recorder_.finish(number, status);
  std::shared_ptr<Request> last;  // released without the lock
  const std::lock_guard lock(mutex_);
  const auto entry = requests_.find(request);
  if (entry == requests_.end()) return;
  last = std::move(entry->second);
  requests_.erase(entry);
}

void Group::destroy() {
  const std::lock_guard once(destroy_mutex_);  // who comes second returns when it is done
  if (state_.exchange(State::kDestroyed) == State::kDestroyed) return;
  if (liveness_) liveness_->remove(this);
  std::vector<std::weak_ptr<Group>> children;
  {
    const std::lock_guard lock(mutex_);
    children.swap(children_);
  }
  for (const auto& child : children) {
    if (const auto group = child.lock()) group->destroy();
  }
  // An abort would throw away messages that are on their way, so it is kept for what cannot be ended otherwise.
  if (inside_.load() > 0 || !cancel_requests()) {
    const Error cause(BP_CANCELLED, fmt::format("group '{}' was destroyed", config_.name));
    abort_agents(cause);
    end_start(cause);
  }
  for (uint32_t inside = inside_.load(); inside != 0; inside = inside_.load()) inside_.wait(inside);
  leave_seat();  // after whoever was still starting the group
  engine_.stop();
  end_requests();
  watchdog_->stop();
  by_memory_ = {};
  exempt_ = {};
  for (const auto& agent : agents_) {  // one that stays: an init that looks at it was left behind
    if (agent.use_count() > 1) agent->abort(report(Error(BP_CANCELLED, "the group was destroyed")));
  }
  agents_.clear();
  reporter_.reset();
  liveness_.reset();
  job_.reset();
}

Deadline Group::end_overdue() {
  constexpr int64_t kAgainNs = INT64_C(50) * 1000000;  // while another thread drives the backend for it
  std::vector<std::shared_ptr<Request>> pending;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : requests_) pending.push_back(entry.second);
  }
  Deadline next = Deadline::never();
  for (const auto& request : pending) {
    try {
      const bool is_due = request->overdue().passed();
      if (is_due && request->test()) continue;
      next = std::min(next, is_due ? Deadline::after(kAgainNs) : request->overdue());
    } catch (const Error&) {  // told to whoever holds the request
    }
  }
  return next;
}

bool Group::cancel_requests() {
  std::vector<std::shared_ptr<Request>> pending;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : requests_) pending.push_back(entry.second);
  }
  for (const auto& request : pending) request->cancel();
  return all_end(pending, Deadline::after(base::grace::kCancel));
}

bool Group::all_end(const std::vector<std::shared_ptr<Request>>& requests, Deadline deadline) {
  for (const auto& request : requests) {
    try {
      if (!request->wait(deadline)) return false;
    } catch (const Error&) {  // told to whoever holds the request
    }
  }
  return true;
}

void Group::end_requests() {
  for (;;) {
    std::shared_ptr<Request> request;
    {
      const std::lock_guard lock(mutex_);
      if (requests_.empty()) return;
      request = requests_.begin()->second;
    }
    try {
      request->wait(Deadline::never());
    } catch (const Error&) {  // told to whoever holds the request
    }
  }
}

void Group::drop_handle() {
  if (handles_.fetch_sub(1) != 1) return;
  if (!InCallback::active()) return destroy();
  start_quiet_thread("bp-end", [self = shared_from_this()] { self->destroy(); }).detach();
}

}  // namespace backplane::core
