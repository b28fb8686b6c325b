// SPDX-License-Identifier: Apache-2.0
#include "mutants_async.hpp"

namespace backplane::specimen {
namespace {

// State that some mutants keep per work until its release.
std::mutex parked_mutex;
std::map<bp_work*, int> ends_told;    // how often the end of a work was reported
std::map<bp_work*, void*> in_flight;  // works whose end was not reported, with their group

void forget(void* self, bp_work* work) {
  {
    const std::lock_guard lock(parked_mutex);
    ends_told.erase(work);
  }
  kPlain.work_release(self, work);
}

int32_t tests_lapse(void* self, bp_work* work, bp_error* err) {
  const int32_t status = kPlain.work_test(self, work, err);
  const std::lock_guard lock(parked_mutex);
  return status != BP_AGAIN && ++ends_told[work] > 20 ? BP_AGAIN : status;
}

int32_t waits_once(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  {
    const std::lock_guard lock(parked_mutex);
    if (ends_told.contains(work)) return bp_error_set(err, BP_INVALID, 0, -1, "this work was waited for before");
  }
  const int32_t status = kPlain.work_wait(self, work, timeout_ns, err);
  const std::lock_guard lock(parked_mutex);
  if (status == BP_OK) ends_told[work] = 1;
  return status;
}

int32_t fails_once(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const int32_t status = kPlain.work_wait(self, work, timeout_ns, err);
  const std::lock_guard lock(parked_mutex);
  return has_failed(status) && ends_told[work]++ > 0 ? BP_OK : status;
}

int32_t short_waits_are_fatal(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const int32_t status = kPlain.work_wait(self, work, timeout_ns, err);
  if (status == BP_AGAIN && timeout_ns > 0 && timeout_ns <= 1000) kPlain.work_cancel(self, work);
  return status;
}

std::map<bp_work*, uint32_t> kinds;

int32_t submits_and_names(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const int32_t status = kPlain.submit(self, op, work, err);
  const std::lock_guard lock(parked_mutex);
  if (status == BP_OK && *work != nullptr) kinds[*work] = op->kind;
  return status;
}
void forgets_kind(void* self, bp_work* work) {
  {
    const std::lock_guard lock(parked_mutex);
    kinds.erase(work);
  }
  forget(self, work);
}
int32_t scatters_lapse(void* self, bp_work* work, bp_error* err) {
  const int32_t status = kPlain.work_test(self, work, err);
  const std::lock_guard lock(parked_mutex);
  const bool lapses = status == BP_OK && kinds[work] == BP_SCATTER && ++ends_told[work] > 10;
  return lapses ? BP_AGAIN : status;
}
int32_t barriers_recover(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const int32_t status = kPlain.work_wait(self, work, timeout_ns, err);
  const std::lock_guard lock(parked_mutex);
  const bool recovers = has_failed(status) && kinds[work] == BP_BARRIER && ends_told[work]++ > 0;
  return recovers ? BP_OK : status;
}

// Held while a thread waits.
std::mutex while_waiting;

int32_t waits_with_lock(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const std::lock_guard lock(while_waiting);
  return kPlain.work_wait(self, work, timeout_ns, err);
}
int32_t submits_with_lock(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const std::lock_guard lock(while_waiting);
  return kPlain.submit(self, op, work, err);
}
void cancels_with_lock(void* self, bp_work* work) {
  const std::lock_guard lock(while_waiting);
  kPlain.work_cancel(self, work);
}

int32_t tells_end(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const int32_t status = kPlain.work_wait(self, work, timeout_ns, err);
  const std::lock_guard lock(parked_mutex);
  if (status != BP_AGAIN) ends_told[work] = 1;
  return status;
}
int32_t wants_releases_first(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  {
    const std::lock_guard lock(parked_mutex);
    if (!ends_told.empty()) return bp_error_set(err, BP_INVALID, 0, -1, "release what has ended first");
  }
  return kPlain.submit(self, op, work, err);
}

// Large sends progress only inside calls; if `own_only`, only inside waits for them.
template <bool own_only>
class Idle final : public Specimen {
 public:
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    const bool sync = (op.flags & BP_OP_SYNC) != 0;
    if (sync) enter(nullptr);
    try {
      std::unique_ptr<sdk::Work> work = Specimen::submit(op);
      if (sync) leave(nullptr);
      return work;
    } catch (...) {
      if (sync) leave(nullptr);
      throw;
    }
  }
  bool wait(Task& task, int64_t timeout_ns) override {
    enter(&task);
    try {
      const bool done = Specimen::wait(task, timeout_ns);
      leave(&task);
      return done;
    } catch (...) {
      leave(&task);
      throw;
    }
  }

 protected:
  void on_frame(int32_t rank, const Frame& frame) override {
    if (frame.kind == kReady && !may_go_on(frame.id)) {
      held_.push_back({rank, frame});
    } else {
      Specimen::on_frame(rank, frame);
    }
  }

 private:
  struct Held {
    int32_t rank;
    Frame frame;
  };

  void enter(const Task* task) {
    const Lock lock(mutex_);
    inside_.insert(task);
    for (Held& each : std::exchange(held_, {})) on_frame(each.rank, each.frame);
  }
  void leave(const Task* task) {
    const Lock lock(mutex_);
    inside_.erase(inside_.find(task));
  }
  bool may_go_on(uint64_t id) {
    if (!own_only || leaving_) return !inside_.empty() || leaving_;
    const auto send = waiting_sends_.find(id);
    return inside_.contains(nullptr) || (send != waiting_sends_.end() && inside_.contains(send->second.get()));
  }

  std::multiset<const Task*> inside_;  // null: a submit that waits
  std::list<Held> held_;
};

int32_t sync_tells_capacity(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const int32_t status = kPlain.submit(self, op, work, err);
  if (status == BP_OK && *work == nullptr && op->kind == BP_RECV && (op->flags & BP_OP_SYNC) != 0 &&
      op->result != nullptr) {
    op->result->bytes = op->output.count * bp_dtype_size(op->dtype);
  }
  return status;
}

class CancelDropsMessage final : public DropsMessages {
  bool eats(const sdk::Failure& why) const override { return why.status() == BP_CANCELLED; }
};

class CancelTimesOut final : public Specimen {
  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    Specimen::give_up(operation, why.status() == BP_CANCELLED ? sdk::Failure(BP_TIMEOUT, why.what()) : why);
  }
};

class CancelsWhatIsDone final : public Specimen {
  void cancel(const TaskPtr& task) noexcept override {
    Specimen::cancel(task);
    const Lock lock(mutex_);
    task->failure.emplace(BP_CANCELLED, "cancelled by this rank");
  }
};

class CancelCutsConnection final : public Specimen {
  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    const bool cuts = operation->sends && !operation->done && why.status() == BP_CANCELLED;
    Specimen::give_up(operation, why);
    if (cuts && operation->peer != rank_) break_off(operation->peer, "a send was cancelled");
    if (cuts && operation->peer == rank_) peer(rank_).gone.emplace(BP_PEER_LOST, "a send was cancelled", rank_);
  }
};

int32_t submits_and_counts(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const int32_t status = kPlain.submit(self, op, work, err);
  const std::lock_guard lock(parked_mutex);
  if (status == BP_OK && *work != nullptr) in_flight[*work] = self;
  return status;
}
// Cancels another operation of the group in flight.
void releases_another(void* self, bp_work* work) {
  const std::lock_guard lock(parked_mutex);
  in_flight.erase(work);
  kPlain.work_release(self, work);
  for (const auto& [other, group] : in_flight) {
    if (group == self && kPlain.work_test(self, other, nullptr) == BP_AGAIN) return kPlain.work_cancel(self, other);
  }
}

// The last copied message is sent by the next call and dropped by destroy.
class ForgetsTheLast final : public Specimen {
 public:
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    let_go();
    return Specimen::submit(op);
  }
  bool wait(Task& task, int64_t timeout_ns) override {
    let_go();
    return Specimen::wait(task, timeout_ns);
  }

 protected:
  void enqueue(int32_t rank, const Frame& frame, std::vector<std::byte> owned, OperationPtr send) override {
    if (frame.kind == kEager && frame.channel == kMessages && !letting_go_) {
      last_.emplace(Last{rank, frame, std::move(owned)});
    } else {
      Specimen::enqueue(rank, frame, std::move(owned), std::move(send));
    }
  }

 private:
  struct Last {
    int32_t rank;
    Frame frame;
    std::vector<std::byte> bytes;
  };
  void let_go() {
    const Lock lock(mutex_);
    letting_go_ = true;
    if (last_) Specimen::enqueue(last_->rank, last_->frame, std::move(last_->bytes), nullptr);
    last_.reset();
    letting_go_ = false;
  }
  std::optional<Last> last_;
  bool letting_go_ = false;
};

// A cancelled receive is forgotten and never ends.
class ForgetsTheCancelled final : public Specimen {
  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    if (operation->sends || why.status() != BP_CANCELLED || !matcher_.remove_receive(*operation)) {
      Specimen::give_up(operation, why);
    }
  }
};

class NotifiesEarly final : public Specimen {
  void on_end(Task& task, void (*ended)(void* to), void* to) override {
    Specimen::on_end(task, ended, to);
    const Lock lock(mutex_);
    if (!task.done) task.ended(task.to);
    task.ended = nullptr;
  }
};

class NotifiesTwice final : public Specimen {
  void on_end(Task& task, void (*ended)(void* to), void* to) override {
    Specimen::on_end(task, ended, to);
    const Lock lock(mutex_);
    if (task.done) ended(to);
  }
};

class SkipsTerminal final : public Specimen {
  void on_end(Task& task, void (*ended)(void* to), void* to) override {
    const Lock lock(mutex_);
    task.ended = ended;
    task.to = to;
  }
};

class SkipsAbortNotice final : public Specimen {
  void on_end(Task& task, void (*ended)(void* to), void* to) override {
    Specimen::on_end(task, ended, to);
    const Lock lock(mutex_);
    told_.push_back(&task);
  }
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      for (Task* const each : told_) each->ended = nullptr;
    }
    Specimen::abort(why);
  }
  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    std::erase(told_, operation.get());  // its task may be freed
    Specimen::give_up(operation, why);
  }
  std::vector<Task*> told_;
};

class SkipsCancelNotice final : public Specimen {
  void give_up(const OperationPtr& operation, const sdk::Failure& why) override {
    operation->ended = nullptr;
    Specimen::give_up(operation, why);
  }
};

}  // namespace

std::vector<Mutant> async_mutants() {
  std::vector<Mutant> mutants = {
      {"async.test-is-monotonic", "a terminal state is reported twenty times and then lost", nullptr, nullptr,
       replaced<&Table::work_test, tests_lapse, &Table::work_release, forget>},
      {"async.wait-twice", "a work can be waited for once", nullptr, nullptr,
       replaced<&Table::work_wait, waits_once, &Table::work_release, forget>},
      {"async.wait-after-error", "a failure is reported once, then BP_OK", nullptr, nullptr,
       replaced<&Table::work_wait, fails_once, &Table::work_release, forget>},
      {"async.answer-of-success", "the success of a scatter is reported ten times and then lost", nullptr, nullptr,
       replaced<&Table::work_test, scatters_lapse, &Table::submit, submits_and_names, &Table::work_release,
                forgets_kind>},
      {"async.answer-of-failure", "the failure of a barrier is reported once, then BP_OK", nullptr, nullptr,
       replaced<&Table::work_wait, barriers_recover, &Table::submit, submits_and_names, &Table::work_release,
                forgets_kind>},
      {"async.short-waits", "a wait shorter than a microsecond cancels", nullptr, nullptr,
       replaced<&Table::work_wait, short_waits_are_fatal>},
      {"async.wait-beside-submit", "a lock is held during waits and needed to submit", nullptr, nullptr,
       replaced<&Table::work_wait, waits_with_lock, &Table::submit, submits_with_lock>},
      {"async.submit-at-the-end", "submit fails until completed works are released", nullptr, nullptr,
       replaced<&Table::work_wait, tells_end, &Table::submit, wants_releases_first, &Table::work_release, forget>},
      {"async.waits-in-several-threads", "one thread can wait at a time", nullptr, nullptr,
       replaced<&Table::work_wait, waits_with_lock>},
      {"async.autonomous-progress", "large sends progress only inside calls", made<Idle<false>>},
      {"async.progress-of-all", "large sends progress only inside waits for them", made<Idle<true>>},
      {"async.sync-equals-async", "with BP_OP_SYNC the length of a message is that of the buffer", nullptr, nullptr,
       replaced<&Table::submit, sync_tells_capacity>},
      {"async.cancel-recv", "a cancelled recv drops the next message", made<CancelDropsMessage>},
      {"async.cancel-recv:2", "a cancelled recv ends with BP_TIMEOUT", made<CancelTimesOut>},
      {"async.cancel-beside-wait", "work_cancel waits for the thread that waits", nullptr, nullptr,
       replaced<&Table::work_wait, waits_with_lock, &Table::work_cancel, cancels_with_lock>},
      {"async.cancel-when-done", "work_cancel turns success into failure", made<CancelsWhatIsDone>},
      {"async.cancel-send", "a cancelled send closes the connection", made<CancelCutsConnection>},
      {"async.dropped-handle", "releasing a work cancels another one", nullptr, nullptr,
       replaced<&Table::submit, submits_and_counts, &Table::work_release, releases_another>},
      {"async.destroy-beside-peers", "destroy drops the last message", made<ForgetsTheLast>},
      {"async.notify-once", "a notice comes early", made<NotifiesEarly>},
      {"async.notify-once:2", "a terminal operation is notified twice", made<NotifiesTwice>},
      {"async.notify-once:3", "a terminal operation is not notified", made<SkipsTerminal>},
      {"async.notify-failures", "an abort gives no notice", made<SkipsAbortNotice>},
      {"async.notify-failures:2", "a cancel gives no notice", made<SkipsCancelNotice>},
      {"async.notify-progress", "large sends progress only inside calls", made<Idle<false>>},
      {"async.destroy-with-pending", "a cancelled recv never ends", made<ForgetsTheCancelled>},
  };
  for (const Mutant& each : async_interrupt_mutants()) mutants.push_back(each);
  return mutants;
}

}  // namespace backplane::specimen
