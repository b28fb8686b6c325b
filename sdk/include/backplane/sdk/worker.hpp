// SPDX-License-Identifier: Apache-2.0
//
// For libraries that block: operations that run on threads of the backend's own, in the order in which they were
// submitted.
//
//     Workers workers_{2};
//     return workers_.submit([...] { library_blocks(); });  // a Work that ends as the function returns or throws
//
// A task that takes a std::stop_token can be told to give up while it runs: by Work::cancel, by abort and by the
// destructor. It either asks the token between its steps, or has the library interrupted:
//
//     workers_.submit([...](const std::stop_token& stop) {
//       const std::stop_callback interrupt(stop, [this] { library_interrupt(handle_); });
//       if (library_blocks(handle_) != 0) throw Failure(...);
//     });
//
// Having been told, it ends by throwing anything, and its Work ends with the reason it was told for; or it returns,
// and its Work is done after all. A task without a token runs to its end, so abort keeps its promise (half a second)
// only if the backend's abort makes the library return.
//
// Collectives are safe in it, also with several threads: every rank starts them in the same order, so that the oldest
// unfinished one has a thread everywhere and gets on. Sends and receives are not, if they can wait for each other on
// one object of this class: give each peer, and each direction, one of its own.
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

// Starts a thread that takes no signals. Throws BP_RESOURCE if there is none to be had.
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
  // Fails what waits, tells what runs to give up, and joins the threads.
  ~Workers() { abort(Failure(BP_CANCELLED, "the group was destroyed")); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Any thread, does not block. `run` is void() or void(const std::stop_token&). The Work must not outlive this object;
  // its cancel fails a task that has not started at once, and asks one that runs through its token.
  template <typename Run>
  std::unique_ptr<Work> submit(Run run) {
    if constexpr (std::is_invocable_v<Run&, const std::stop_token&>) {
      return add(std::move(run));
    } else {
      return add([run = std::move(run)](const std::stop_token&) mutable { run(); });
    }
  }

  // Fails what has not started and whatever is submitted later, and tells what runs to give up. Any thread, does not
  // block. Only the first call counts.
  void abort(const Failure& why) {
    std::vector<std::shared_ptr<Task>> told;
    std::vector<Run> dropped;
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) ended_.emplace(why);
      told.assign(tasks_.begin(), tasks_.end());
      for (const auto& task : told) dropped.push_back(task->give_up(*ended_));
      tasks_.remove_if([](const auto& task) { return !task->has_started; });
    }
    // Without the lock: a stop callback is the author's code. The token's own rules keep it from outliving its task.
    for (const auto& task : told) task->stop.request_stop();
  }

 private:
  using Run = std::function<void(const std::stop_token&)>;

  struct Task {
    // With mutex_ held. Returns what the caller destroys without it: the captures are the author's.
    Run give_up(const Failure& why) {
      if (!reason) reason.emplace(why);
      if (has_started) return {};
      completion.fail(why);
      return std::exchange(run, {});
    }

    Run run;
    Completion completion;
    std::stop_source stop;
    bool has_started = false;
    std::optional<Failure> reason;  // why it was told to give up
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
      if (task->reason) return;  // it has failed already
      task->has_started = true;
    }
    bp_error err;
    bp_error_init(&err);
    const int32_t status = guarded(&err, [&task] {
      task->run(task->stop.get_token());
      return BP_OK;
    });
    task->run = {};  // before the end is told: what it holds may be the caller's
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
      dropped = task->give_up(Failure(BP_CANCELLED, "cancelled by this rank"));
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
