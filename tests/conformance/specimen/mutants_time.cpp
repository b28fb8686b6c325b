// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>

#include "mutants_async.hpp"

namespace backplane::specimen {
namespace {

bool is_message(const bp_op& op) { return op.kind == BP_SEND || op.kind == BP_RECV; }

template <typename Change>
int32_t submit_changed(void* self, const bp_op* op, bp_work** work, bp_error* err, Change change) {
  bp_op changed = *op;
  if ((op->flags & BP_OP_SYNC) != 0 && op->timeout_ns >= 0) change(changed);
  return kPlain.submit(self, &changed, work, err);
}

int32_t rounds_tiny_up(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return submit_changed(self, op, work, err, [](bp_op& changed) {
    if (changed.timeout_ns <= kMillisecond) changed.timeout_ns = 300 * kMillisecond;
  });
}

int32_t zero_never_receives(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  if (op->kind == BP_RECV && (op->flags & BP_OP_SYNC) != 0 && op->timeout_ns == 0) {
    return bp_error_set(err, BP_TIMEOUT, 0, op->peer, "no time to receive anything");
  }
  return kPlain.submit(self, op, work, err);
}

int32_t waits_in_half_seconds(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const int64_t step = 500 * kMillisecond;
  const bool rounded = timeout_ns > kMillisecond && timeout_ns < INT64_MAX - step;
  return kPlain.work_wait(self, work, rounded ? (timeout_ns + step - 1) / step * step : timeout_ns, err);
}

int32_t halves_deadlines(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return submit_changed(self, op, work, err, [](bp_op& changed) { changed.timeout_ns /= 2; });
}

// Polls instead of being woken.
int32_t naps(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const TimePoint deadline = deadline_after(timeout_ns);
  for (;;) {
    const int32_t status = kPlain.work_test(self, work, err);
    if (status != BP_AGAIN || Clock::now() >= deadline) return status;
    const int64_t left = std::chrono::nanoseconds(deadline - Clock::now()).count();
    const timespec nap = {0, std::clamp<int64_t>(left, 0, 600 * kMillisecond)};
    nanosleep(&nap, nullptr);
  }
}
int32_t leaves_waiting_to_naps(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  bp_op changed = *op;
  changed.flags &= ~uint64_t{BP_OP_SYNC};
  return kPlain.submit(self, &changed, work, err);
}

int32_t overflows(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  return kPlain.work_wait(self, work, timeout_ns > INT64_MAX - 1000 * kMillisecond ? 0 : timeout_ns, err);
}

int32_t forever_is_short(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  return kPlain.work_wait(self, work, timeout_ns < 0 ? 100 * kMillisecond : timeout_ns, err);
}

int32_t sends_late(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return submit_changed(self, op, work, err, [](bp_op& changed) {
    if (changed.kind == BP_SEND) changed.timeout_ns *= 3;
  });
}

int32_t collects_late(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  return submit_changed(self, op, work, err, [](bp_op& changed) {
    if (!is_message(changed)) changed.timeout_ns += 1500 * kMillisecond;
  });
}

class TimeoutDropsMessage final : public DropsMessages {
  bool eats(const sdk::Failure& why) const override { return why.status() == BP_TIMEOUT; }
};

class WallClock final : public Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    if (timeout_ns <= 0 || timeout_ns > 3600 * 1000 * kMillisecond) return Specimen::wait(task, timeout_ns);
    {
      Lock lock(mutex_);
      changed_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout_ns),
                          [&task] { return task.done; });
    }
    return Specimen::wait(task, 0);
  }
};

}  // namespace

std::vector<Mutant> time_mutants() {
  return {
      {"time.zero-and-tiny", "a deadline of a millisecond or less is 300 ms", nullptr, nullptr,
       replaced<&Table::submit, rounds_tiny_up>},
      {"time.zero-takes-what-is-there", "a recv without time never receives", nullptr, nullptr,
       replaced<&Table::submit, zero_never_receives>},
      {"time.per-call", "waits are rounded up to half seconds", nullptr, nullptr,
       replaced<&Table::work_wait, waits_in_half_seconds>},
      {"time.per-call:2", "deadlines pass in half the time", nullptr, nullptr,
       replaced<&Table::submit, halves_deadlines>},
      {"time.ends-with-the-message", "waits look every 600 ms whether they are over", nullptr, nullptr,
       replaced<&Table::work_wait, naps, &Table::submit, leaves_waiting_to_naps>},
      {"time.huge", "the largest timeouts overflow", nullptr, nullptr, replaced<&Table::work_wait, overflows>},
      {"time.infinite-but-abortable", "an infinite timeout is 100 ms", nullptr, nullptr,
       replaced<&Table::work_wait, forever_is_short>},
      {"time.sends", "sends keep three times their deadline", nullptr, nullptr, replaced<&Table::submit, sends_late>},
      {"time.usable-afterwards", "a recv that timed out drops the next message", made<TimeoutDropsMessage>},
      {"time.collective", "collectives overshoot by a second and a half", nullptr, nullptr,
       replaced<&Table::submit, collects_late>},
      {"time.wall-clock-jump", "waits use the wall clock", made<WallClock>},
  };
}

}  // namespace backplane::specimen
