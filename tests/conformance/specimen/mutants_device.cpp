// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

constexpr int64_t kTooLong = INT64_C(30'000'000'000);  // also where the bounds of the case are multiplied

struct OrdersNothing : Specimen {
  bool wait_on_stream(const TaskPtr&, int64_t) override { return true; }
};

struct OrdersByWaiting : Specimen {
  bool wait_on_stream(const TaskPtr& task, int64_t timeout_ns) override { return Specimen::wait(*task, timeout_ns); }
};

struct OneDriver : Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    const std::lock_guard lock(driver_);
    return Specimen::wait(task, timeout_ns);
  }
  bool wait_on_stream(const TaskPtr& task, int64_t timeout_ns) override {
    const std::unique_lock lock(driver_, std::chrono::nanoseconds(timeout_ns));
    return lock.owns_lock() && Specimen::wait_on_stream(task, timeout_ns);
  }
  std::timed_mutex driver_;
};

struct OrdersSlowly : Specimen {
  bool wait_on_stream(const TaskPtr& task, int64_t timeout_ns) override {
    return Specimen::wait(*task, std::max(timeout_ns, kTooLong));
  }
};

// Waits for success or its deadline, and ignores failures and aborts.
struct OrdersThroughAborts : Specimen {
  bool wait_on_stream(const TaskPtr& task, int64_t) override {
    Lock lock(mutex_);
    changed_.wait_until(lock, deadline_after(kTooLong), [&task] { return task->done && !task->failure; });
    lock.unlock();
    return Specimen::wait_on_stream(task, 0);
  }
};

struct OrdersWhatFailed : Specimen {
  bool wait_on_stream(const TaskPtr& task, int64_t timeout_ns) override {
    return (task->done && task->failure) || Specimen::wait_on_stream(task, timeout_ns);
  }
};

// A batch takes the tag of its first message.
struct OneTagForAll : Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    bp_op changed = op;
    if (op.kind == BP_RECV) return Specimen::submit(op);
    if (goes_on_) changed.tag = tag_;
    goes_on_ = (op.flags & BP_OP_MORE) != 0;
    tag_ = changed.tag;
    return Specimen::submit(changed);
  }
  bool goes_on_ = false;
  uint64_t tag_ = 0;
};

// An operation of a batch, except the last, begins with the next one.
struct WaitsForTheRest : Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    {
      const Lock lock(mutex_);
      if (rest_) finish(*rest_);
      rest_ = std::make_shared<Task>();
      if ((op.flags & BP_OP_MORE) != 0) stream_.push_back(rest_);
    }
    return Specimen::submit(op);
  }
  TaskPtr rest_;
};

template <class BadCopies>
struct WithCopies : Specimen {
  Copies& copies() override { return bad_; }
  void abort(const sdk::Failure& why) noexcept override {
    bad_.is_aborted = true;
    Specimen::abort(why);
  }
  BadCopies bad_;
};

struct NoCopiesAfterAbort : Copies {
  void copy(void* to, const void* from, uint64_t bytes) override {
    if (is_aborted) throw sdk::Failure(BP_CANCELLED, "the group was aborted");
    Copies::copy(to, from, bytes);
  }
  std::atomic<bool> is_aborted = false;
};

struct LosesTheEnd : Copies {
  void copy(void* to, const void* from, uint64_t bytes) override { Copies::copy(to, from, bytes / 4096 * 4096); }
  std::atomic<bool> is_aborted = false;
};

}  // namespace

std::vector<Mutant> device_mutants() {
  return {
      {"device.order", "wait_on_stream has no effect", made<OrdersNothing>},
      {"device.order-early", "wait_on_stream waits for the operation's end", made<OrdersByWaiting>},
      {"device.order-beside-wait", "wait_on_stream waits for a thread in work_wait", made<OneDriver>},
      {"device.order-limits", "wait_on_stream ignores its timeout and waits 30 s", made<OrdersSlowly>},
      {"device.order-aborted", "wait_on_stream ignores an abort", made<OrdersThroughAborts>},
      {"device.order-ended", "wait_on_stream of a failed operation is BP_OK", made<OrdersWhatFailed>},
      {"device.batch", "a batch takes the tag of its first message", made<OneTagForAll>},
      {"device.batch-cut-short", "a message of a batch begins when the next one is submitted", made<WaitsForTheRest>},
      {"device.copies", "there are no copies after an abort", made<WithCopies<NoCopiesAfterAbort>>},
      {"device.copies:2", "copies lose what is no whole page", made<WithCopies<LosesTheEnd>>},
  };
}

}  // namespace backplane::specimen
