// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <atomic>

#include "mutants_async.hpp"

namespace backplane::specimen {
namespace {

std::mutex alive_mutex;
std::set<void*> alive;  // alive in this process
bool poisoned = false;

void sleep_for(int64_t seconds) {
  const timespec time = {seconds, 0};
  nanosleep(&time, nullptr);
}

class LosesTheCause final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    Specimen::abort(sdk::Failure(why.status(), "the group was aborted", why.peer_rank(), why.native_code()));
  }
};

class ForgetsAnySource final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      if (!aborted_) (void)matcher_.take_any_source();
    }
    Specimen::abort(why);
  }
};

class ForgetsSends final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      waiting_sends_.clear();
    }
    Specimen::abort(why);
  }
};

// A collective that fails is over only when the group is destroyed.
class ForgetsCollectives final : public Specimen {
  void run_collective(Collective& collective) override {
    try {
      Specimen::run_collective(collective);
    } catch (...) {
      Lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_; });
      throw;
    }
  }
};

// A scan that fails is over two seconds later.
class EndsScansLate final : public Specimen {
  void run_collective(Collective& collective) override {
    try {
      Specimen::run_collective(collective);
    } catch (...) {
      Lock lock(mutex_);
      if (collective.op.kind == BP_SCAN) changed_.wait_for(lock, std::chrono::seconds(2), [this] { return stopping_; });
      throw;
    }
  }
};

class StartsOn final : public Specimen {
  void start(const sdk::Context& context) override {
    try {
      Specimen::start(context);
    } catch (const sdk::Failure& e) {
      if (e.status() == BP_CANCELLED) sleep_for(2);
      throw;
    }
  }
};

class EndsAHundred final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    {
      const Lock lock(mutex_);
      size_t kept = 0;
      for (const OperationPtr& each : matcher_.clear()) {
        if (++kept <= 100) matcher_.add_receive(each);
      }
    }
    Specimen::abort(why);
  }
};

// Receives are accepted after abort and never end.
int32_t receives_on(void* self, const bp_op* op, bp_work** work, bp_error* err);

class NeverEnds final : public sdk::Work {
 public:
  bool wait(int64_t timeout_ns) override {
    if (timeout_ns != 0) {
      const timespec time = {timeout_ns < 0 || timeout_ns > 1'000'000'000 ? 1 : 0, 1'000'000};
      nanosleep(&time, nullptr);
    }
    return false;
  }
};

int32_t receives_on(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const int32_t status = kPlain.submit(self, op, work, err);
  if (!has_failed(status) || op->kind != BP_RECV || op->output.count != 16) return status;
  *work = reinterpret_cast<bp_work*>(static_cast<sdk::Work*>(new NeverEnds));
  return BP_OK;
}

int32_t fails_vaguely(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const int32_t status = kPlain.submit(self, op, work, err);
  if (!has_failed(status) || status == BP_TIMEOUT || status == BP_INVALID) return status;
  return bp_error_set(err, BP_CANCELLED, 0, -1, "the group cannot be used any more");
}

class LastCauseCounts final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    Specimen::abort(why);
    const Lock lock(mutex_);
    aborted_.emplace(why);
  }
};

// An abort beside another one returns while the group still has the cause of neither, and leaves its own for a while.
class AbortsBesideItself final : public Specimen {
  void abort(const sdk::Failure& why) noexcept override {
    if (begun_.exchange(true)) {
      const Lock lock(mutex_);
      if (!aborted_) early_.emplace(why);
      return;
    }
    const timespec time = {0, 5'000'000};
    nanosleep(&time, nullptr);
    Specimen::abort(why);
  }
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    {
      const Lock lock(mutex_);
      if (early_ && !aborted_) throw sdk::Failure(*early_);
    }
    return Specimen::submit(op);
  }
  std::atomic<bool> begun_ = false;
  std::optional<sdk::Failure> early_;
};

class PoisonsTheProcess final : public Specimen {
  void start(const sdk::Context& context) override {
    {
      const std::lock_guard lock(alive_mutex);
      if (poisoned) throw sdk::Failure(BP_INTERNAL, "an earlier group was aborted");
    }
    Specimen::start(context);
  }
  void abort(const sdk::Failure& why) noexcept override {
    {
      const std::lock_guard lock(alive_mutex);
      poisoned = true;
    }
    Specimen::abort(why);
  }
};

void aborts_all(void*, const bp_error* why) {
  const std::lock_guard lock(alive_mutex);
  for (void* each : alive) kPlain.abort(each, why);
}
void destroys(void* self) {
  {
    const std::lock_guard lock(alive_mutex);
    alive.erase(self);
  }
  kPlain.destroy(self);
}
void enlisted(bp_agent& agent) {
  {
    const std::lock_guard lock(alive_mutex);
    alive.insert(agent.self);
  }
  replaced<&Table::abort, aborts_all, &Table::destroy, destroys>(agent);
}

class UndoesWhatIsDone final : public Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    {
      const Lock lock(mutex_);
      require_alive();
    }
    return Specimen::wait(task, timeout_ns);
  }
};

class LingersAfterAbort final : public Specimen {
  void close() noexcept override {
    bool lingers = false;
    {
      const Lock lock(mutex_);
      lingers = aborted_.has_value();
    }
    if (lingers) sleep_for(7);
    Specimen::close();
  }
};

}  // namespace

std::vector<Mutant> abort_mutants() {
  return {
      {"abort.blocked-recv", "abort loses the cause", made<LosesTheCause>},
      {"abort.blocked-any-source", "abort forgets receives from any source", made<ForgetsAnySource>},
      {"abort.blocked-send", "abort forgets sends that wait for their recv", made<ForgetsSends>},
      {"abort.blocked-collective", "abort does not end collectives", made<ForgetsCollectives>},
      {"abort.blocked-collective:2", "abort ends scans two seconds late", made<EndsScansLate>},
      {"abort.during-init", "init gives up two seconds late", made<StartsOn>},
      {"abort.many-pending", "abort ends a hundred operations and forgets the rest", made<EndsAHundred>},
      {"abort.beside-submits", "receives are accepted after abort and never end", nullptr, nullptr,
       replaced<&Table::submit, receives_on>},
      {"abort.submit-afterwards", "submit after abort fails without the cause", nullptr, nullptr,
       replaced<&Table::submit, fails_vaguely>},
      {"abort.twice", "the last cause counts", made<LastCauseCounts>},
      {"abort.at-once", "an abort beside another one has its own cause for a while", made<AbortsBesideItself>},
      {"abort.new-group-afterwards", "no group can be made after an abort", made<PoisonsTheProcess>},
      {"abort.leaves-others-alone", "abort ends all groups of the process", nullptr, nullptr, enlisted},
      {"abort.done-stays-done", "abort turns completed operations into failures", made<UndoesWhatIsDone>},
      {"abort.destroy-afterwards", "destroy after abort takes seven seconds", made<LingersAfterAbort>},
  };
}

}  // namespace backplane::specimen
