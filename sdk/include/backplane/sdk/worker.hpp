// SPDX-License-Identifier: Apache-2.0
//
// Worker threads for libraries that block. Operations start in the order in which they were submitted.
//
//     Workers workers_{2};
//     return workers_.submit([...] { library_blocks(); });  // the Work ends when it does
//
// Work::cancel, abort and the destructor can stop a running task that takes a std::stop_token. The task either polls
// the token between its steps or interrupts the library:
//
//     workers_.submit([...](const std::stop_token& stop) {
//       const std::stop_callback interrupt(stop, [this] { library_interrupt(handle_); });
//       if (library_blocks(handle_) != 0) throw Failure(...);
//     });
//
// A stopped task that throws anything fails its Work with the reason of the stop. A stopped task that returns completes
// its Work. A task without a token runs to its end; abort then meets its limit (half a second) only if the backend's
// abort makes the library return.
//
// Collectives cannot deadlock here, also with several threads: every rank starts them in the same order, so the oldest
// unfinished one has a thread on every rank. Sends and receives that wait for each other can: use one object of this
// class per peer and direction.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "backplane/base/executor.hpp"
#include "backplane/base/signals.hpp"
#include "completion.hpp"

namespace backplane::sdk {

using base::SignalsBlocked;

inline Failure cannot_start_thread(const std::system_error& error) {
  return {BP_RESOURCE, std::string("cannot start a thread: ") + error.what(), -1, error.code().value()};
}

// Starts a thread that blocks all signals. Throws BP_RESOURCE if no thread can be started.
template <typename Body>
std::thread start_thread(Body&& body) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw cannot_start_thread(error);
  }
}

class Workers {
 public:
  // Threads start when tasks are submitted.
  explicit Workers(size_t thread_count) : executor_(thread_count, base::Executor::AtStop::kDropQueued) {}
  // Fails waiting tasks, stops running ones and joins the threads.
  ~Workers() { abort(Failure(BP_CANCELLED, "the group was destroyed")); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Any thread, does not block. `run` is void() or void(const std::stop_token&). The Work must not outlive this object;
  // its cancel fails a task that has not started at once, and stops a running one through its token.
  template <typename Run>
  std::unique_ptr<Work> submit(Run run) {
    if constexpr (std::is_invocable_v<Run&, const std::stop_token&>) {
      return add(std::move(run));
    } else {
      return add([run = std::move(run)](const std::stop_token&) mutable { run(); });
    }
  }

  // Fails waiting tasks and all later ones, and stops running tasks. Any thread, does not block. Only the first call
  // has an effect.
  void abort(const Failure& why) {
    std::vector<std::shared_ptr<Task>> tasks;
    std::vector<Run> dropped;
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) ended_.emplace(why);
      tasks.assign(tasks_.begin(), tasks_.end());
      for (const auto& task : tasks) dropped.push_back(task->stop_with(*ended_));
      tasks_.remove_if([](const auto& task) { return !task->has_started; });
    }
    // Without the lock: stop callbacks run the author's code. They are deregistered before their task ends.
    for (const auto& task : tasks) task->stop.request_stop();
  }

 private:
  using Run = std::function<void(const std::stop_token&)>;

  struct Task {
    // With mutex_ held. The caller destroys the result without it: destructors of captures run the author's code.
    Run stop_with(const Failure& why) {
      if (!reason) reason.emplace(why);
      if (has_started) return {};
      completion.fail(why);
      return std::exchange(run, {});
    }

    Run run;
    Completion completion;
    std::stop_source stop;
    bool has_started = false;
    std::optional<Failure> reason;  // why it was stopped
  };

  std::unique_ptr<Work> add(Run run) {
    std::list<std::shared_ptr<Task>> entry(1, std::make_shared<Task>());
    const std::shared_ptr<Task> task = entry.front();
    task->run = std::move(run);
    auto work = std::make_unique<CompletionWork>(std::shared_ptr<Completion>(task, &task->completion),
                                                 [this, task] { cancel(task); });
    const std::lock_guard lock(mutex_);
    if (ended_) throw Failure(*ended_);
    try {
      executor_.add([this, task] { perform(task); });
    } catch (const std::system_error& error) {
      throw cannot_start_thread(error);
    }
    tasks_.splice(tasks_.end(), entry);
    return work;
  }

  void perform(const std::shared_ptr<Task>& task) {
    {
      const std::lock_guard lock(mutex_);
      if (task->reason) return;  // it has already failed
      task->has_started = true;
    }
    bp_error err;
    bp_error_init(&err);
    const int32_t status = guarded(&err, [&task] {
      task->run(task->stop.get_token());
      return BP_OK;
    });
    task->run = {};  // before the end is reported: the captures may refer to the caller's objects
    const std::lock_guard lock(mutex_);
    tasks_.remove(task);
    if (status == BP_OK) {
      task->completion.finish();
    } else {
      task->completion.fail(task->reason.value_or(Failure(err)));
    }
  }

  void cancel(const std::shared_ptr<Task>& task) {
    Run dropped;
    {
      const std::lock_guard lock(mutex_);
      dropped = task->stop_with(Failure(BP_CANCELLED, "cancelled by this rank"));
      if (!task->has_started) tasks_.remove(task);
    }
    task->stop.request_stop();
  }

  std::mutex mutex_;
  std::optional<Failure> ended_;
  std::list<std::shared_ptr<Task>> tasks_;  // neither done nor failed
  base::Executor executor_;                 // last: its tasks use all of the above
};

}  // namespace backplane::sdk
