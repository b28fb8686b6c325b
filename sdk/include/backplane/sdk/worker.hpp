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

#include <condition_variable>
#include <deque>
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

#include "backplane/base/signals.hpp"
#include "completion.hpp"

namespace backplane::sdk {

using base::SignalsBlocked;

// Starts a thread that takes no signals. Throws BP_RESOURCE if there is none to be had.
template <typename Body>
std::thread start_thread(Body&& body) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw Failure(BP_RESOURCE, std::string("cannot start a thread: ") + error.what(), -1, error.code().value());
  }
}

class Workers {
 public:
  // The threads start with the first submit.
  explicit Workers(size_t thread_count) : thread_count_(thread_count) {}
  // Fails what waits, tells what runs to give up, and joins the threads.
  ~Workers() {
    abort(Failure(BP_CANCELLED, "the group was destroyed"));
    for (std::thread& thread : threads_) thread.join();
  }
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
    std::vector<std::shared_ptr<Task>> running;
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) ended_.emplace(why);
      for (const auto& task : waiting_) task->completion.fail(*ended_);
      waiting_.clear();
      for (const auto& task : running_) {
        if (!task->reason) task->reason.emplace(*ended_);
      }
      running.assign(running_.begin(), running_.end());
      changed_.notify_all();
    }
    // Without the lock: a stop callback is the author's code. The token's own rules keep it from outliving its task.
    for (const auto& task : running) task->stop.request_stop();
  }

 private:
  struct Task {
    std::function<void(const std::stop_token&)> run;
    Completion completion;
    std::stop_source stop;
    std::optional<Failure> reason;  // why it was told to give up
  };

  std::unique_ptr<Work> add(std::function<void(const std::stop_token&)> run) {
    auto task = std::make_shared<Task>();
    task->run = std::move(run);
    const std::lock_guard lock(mutex_);
    if (ended_) throw Failure(*ended_);
    threads_.reserve(thread_count_);  // a thread that finds no room would end the process
    while (threads_.size() < thread_count_) threads_.push_back(start_thread([this] { work(); }));
    waiting_.push_back(task);
    changed_.notify_one();
    return std::make_unique<CompletionWork>(std::shared_ptr<Completion>(task, &task->completion),
                                            [this, task] { cancel(task); });
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::shared_ptr<Task> task = waiting_.front();
      waiting_.pop_front();
      const auto place = running_.insert(running_.end(), task);
      lock.unlock();
      bp_error err;
      bp_error_init(&err);
      const int32_t status = guarded(&err, [&task] {
        task->run(task->stop.get_token());
        return BP_OK;
      });
      task->run = {};  // before the end is told: what it holds may be the caller's
      lock.lock();
      running_.erase(place);
      if (status == BP_OK) {
        task->completion.finish();
      } else {
        task->completion.fail(task->reason.value_or(Failure(err)));
      }
    }
  }

  void cancel(const std::shared_ptr<Task>& task) {
    const Failure why(BP_CANCELLED, "cancelled by this rank");
    {
      const std::lock_guard lock(mutex_);
      if (std::erase(waiting_, task) > 0) {
        task->completion.fail(why);
        return;
      }
      if (!task->reason) task->reason.emplace(why);
    }
    task->stop.request_stop();
  }

  const size_t thread_count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> waiting_;
  std::list<std::shared_ptr<Task>> running_;
  std::optional<Failure> ended_;
  std::vector<std::thread> threads_;
};

}  // namespace backplane::sdk
