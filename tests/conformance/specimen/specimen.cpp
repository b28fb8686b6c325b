// SPDX-License-Identifier: Apache-2.0
#include "specimen.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace backplane::specimen {
namespace {

constexpr std::chrono::milliseconds kAskInterval(50);

// A send, a receive or a collective in flight. The group outlives it.
class SpecimenWork final : public sdk::Work {
 public:
  SpecimenWork(Specimen& group, TaskPtr task) : group_(group), task_(std::move(task)) {}
  bool wait(int64_t timeout_ns) override { return group_.wait(*task_, timeout_ns); }
  void cancel() noexcept override { group_.cancel(task_); }
  bool wait_on_stream(void*, int64_t timeout_ns) override { return group_.wait_on_stream(task_, timeout_ns); }
  Task& task() { return *task_; }

 private:
  Specimen& group_;
  TaskPtr task_;
};

bool on_device(const bp_op& op) {
  return (op.input.count > 0 && op.input.memory == BP_CUDA) || (op.output.count > 0 && op.output.memory == BP_CUDA);
}

sdk::Failure late(const std::string& what, int64_t timeout_ns, int32_t peer) {
  return {BP_TIMEOUT, what + " was not done after " + std::to_string(static_cast<double>(timeout_ns) / 1e9) + " s",
          peer};
}

}  // namespace

Specimen::Specimen()
    : notify_{sizeof notify_, 0, this,
              [](void* ctx, bp_work* work, void (*ended)(void*), void* to, bp_error* err) {
                return sdk::guarded(err, [&] {
                  static_cast<Specimen*>(ctx)->on_end(static_cast<SpecimenWork&>(sdk::detail::work_of(work)).task(),
                                                      ended, to);
                  return BP_OK;
                });
              }},
      probe_{sizeof probe_, 0, this,
             [](void* ctx, int32_t peer, uint64_t tag, bp_message** message, bp_result* result, bp_error* err) {
               return sdk::guarded(err, [&]() -> int32_t {
                 Message* const taken = static_cast<Specimen*>(ctx)->probe(peer, tag);
                 if (taken == nullptr) return BP_AGAIN;
                 *result = {result->struct_size, taken->arrival.source, taken->arrival.size, taken->arrival.tag};
                 *message = reinterpret_cast<bp_message*>(taken);
                 return BP_OK;
               });
             },
             [](void* ctx, bp_message* message) { static_cast<Specimen*>(ctx)->drop(&message_of(message)); }},
      native_{sizeof native_, 0, "backplane::specimen::Specimen*", this} {}

const void* Specimen::extension(std::string_view id) {
  if (id == BP_EXT_DEVICE) return copies().table();
  if (id == BP_EXT_INTERRUPT) return interruption_.table();
  if (id == BP_EXT_NOTIFY) return &notify_;
  if (id == BP_EXT_PROBE) return &probe_;
  if (id == BP_EXT_NATIVE) return &native_;
  return id == BP_EXT_MEMORY ? pool().table() : nullptr;
}

void Specimen::on_end(Task& task, void (*ended)(void* to), void* to) {
  const Lock lock(mutex_);
  if (task.done) return ended(to);
  task.ended = ended;
  task.to = to;
}

bool Specimen::wait_on_stream(const TaskPtr& task, int64_t) {
  const Lock lock(mutex_);
  if (task->done && task->failure) throw sdk::Failure(*task->failure);
  if (!task->done) stream_.push_back(task);
  return true;
}

void Specimen::require_alive() const {
  if (aborted_) throw sdk::Failure(*aborted_);
}

std::unique_ptr<sdk::Work> Specimen::submit(const bp_op& op) {
  Lock lock(mutex_);
  require_alive();
  std::erase_if(stream_, [](const TaskPtr& each) { return each->done; });
  TaskPtr task;
  std::string what;
  if (op.kind == BP_SEND || op.kind == BP_RECV) {
    const OperationPtr operation = make_operation(op);
    what = operation->text();
    task = operation;
    if (on_device(op)) operation->after = stream_;
    begin(operation);
  } else {
    auto collective = std::make_shared<Collective>(op, world_size_);
    if (on_device(op)) collective->after = stream_;
    what = operation_name(op.kind);
    task = collective;
    collectives_.push_back(std::move(collective));
    changed_.notify_all();
  }
  if ((op.flags & BP_OP_SYNC) != 0) block(op, task, what, lock);
  if (!task->done) return std::make_unique<SpecimenWork>(*this, std::move(task));
  if (task->failure) throw sdk::Failure(*task->failure);
  return nullptr;
}

void Specimen::block(const bp_op& op, const TaskPtr& task, const std::string& what, Lock& lock) {
  const TimePoint deadline = deadline_after(op.timeout_ns);
  const auto done = [&task] { return task->done; };
  while (!changed_.wait_until(lock, std::min(deadline, Clock::now() + kAskInterval), done)) {
    std::optional<sdk::Failure> why;
    if (Clock::now() >= deadline) {
      why = late(what, op.timeout_ns, op.kind == BP_SEND || op.kind == BP_RECV ? op.peer : -1);
    } else if (interrupted(op, lock)) {
      why = sdk::Interruption::failure();
    }
    if (!why) continue;
    lock.unlock();
    give_up_task(task, *why);
    lock.lock();
    return changed_.wait(lock, done);
  }
}

bool Specimen::interrupted(const bp_op&, Lock& lock) {
  lock.unlock();
  const bool interrupts = interruption_.asked();
  lock.lock();
  return interrupts;
}

bool Specimen::wait(Task& task, int64_t timeout_ns) {
  Lock lock(mutex_);
  const auto done = [&task] { return task.done; };
  const TimePoint deadline = deadline_after(timeout_ns);
  if (deadline == TimePoint::max()) {
    changed_.wait(lock, done);
  } else if (timeout_ns > 0) {
    changed_.wait_until(lock, deadline, done);
  }
  if (task.done && task.failure) throw sdk::Failure(*task.failure);
  return task.done;
}

void Specimen::cancel(const TaskPtr& task) noexcept {
  give_up_task(task, sdk::Failure(BP_CANCELLED, "cancelled by this rank"));
}

void Specimen::give_up_task(const TaskPtr& task, const sdk::Failure& why) {
  const Lock lock(mutex_);
  if (task->done) return;
  if (const auto operation = std::dynamic_pointer_cast<Operation>(task)) {
    give_up(operation, why);
  } else if (const auto collective = std::dynamic_pointer_cast<Collective>(task)) {
    give_up(*collective, why);
  }
}

void Specimen::abort(const sdk::Failure& why) noexcept {
  const Lock lock(mutex_);
  if (aborted_) return;
  aborted_.emplace(why);
  for (const OperationPtr& operation : matcher_.clear()) fail(*operation, about(*operation, why));
  for (const auto& [id, receive] : incoming_) fail(*receive, about(*receive, why));
  for (const auto& [id, send] : waiting_sends_) fail(*send, about(*send, why));
  incoming_.clear();
  for (Message& each : probed_) {
    if (each.arrival.local_send) fail(*each.arrival.local_send, about(*each.arrival.local_send, why));
    each.arrival.local_send = nullptr;
  }
  for (const OperationPtr& each : held_) fail(*each, about(*each, why));
  waiting_sends_.clear();
  held_.clear();
  for (Peer& each : peers_) {
    for (const Outgoing& out : each.outgoing) {
      if (out.send) fail(*out.send, about(*out.send, why));
    }
    each.outgoing.clear();
    each.into = nullptr;
    if (each.fd >= 0) ::shutdown(each.fd, SHUT_RDWR);
  }
  for (const CollectivePtr& each : collectives_) fail(*each, why);
  collectives_.clear();
  changed_.notify_all();
  wake();
}

void Specimen::close() noexcept {
  {
    Lock lock(mutex_);
    if (!aborted_ && progress_thread_.joinable()) send_goodbyes(lock);
    stopping_ = true;
    changed_.notify_all();
    if (wake_ >= 0) wake();
  }
  if (progress_thread_.joinable()) progress_thread_.join();
  if (collective_thread_.joinable()) collective_thread_.join();
  for (const Peer& each : peers_) {
    if (each.fd >= 0) ::close(each.fd);
  }
  for (const PendingConnection& each : pending_) ::close(each.fd);
  if (listener_ >= 0) ::close(listener_);
  if (wake_ >= 0) ::close(wake_);
}

}  // namespace backplane::specimen
