// SPDX-License-Identifier: Apache-2.0
#include "liveness/exit_handler.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "backplane/base/executor.hpp"
#include "backplane/base/grace.hpp"
#include "log.hpp"
#include "process.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kStoresNs = 1'000'000'000;  // for all handlers of stores together
constexpr size_t kThreads = 16;

thread_local bool ends_process = false;  // this thread takes part in it

}  // namespace

// The registered handlers of this process.
class ExitHandlers {
 public:
  static ExitHandlers& of_process() {
    static constinit PerProcess<ExitHandlers> instance;
    return *instance;
  }
  static void run_at_exit() { of_process().run(); }
  void hold() const {
    if (!has_run_.load() || ends_process) return;
    // Until the process has ended, with the destructors of its libraries.
    std::this_thread::sleep_for(std::chrono::nanoseconds(end_.later(2 * kStoresNs).left_ns()));
  }

  void add(ExitHandler* handler) {
    static const bool is_registered = std::atexit(&run_at_exit) == 0;  // a child of fork inherits it
    static_cast<void>(is_registered);
    const std::lock_guard lock(mutex_);
    waiting_.insert(handler);
  }
  void remove(ExitHandler* handler) {
    std::unique_lock lock(mutex_);
    returned_.wait(lock, [this, handler] { return running_ != handler; });
    waiting_.erase(handler);
  }

 private:
  void run() {
    using base::grace::kExit;
    using Order = ExitHandler::Order;
    ends_process = true;
    if (has_run_.load()) return;
    end_ = Deadline::after(kExit);
    has_run_ = true;
    run(Order::kWorkers, Deadline::after(kExit / 2));
    run(Order::kGroups, end_);
    run(Order::kLibraries, end_);
    const Deadline stores = Deadline::after(kStoresNs);
    run(Order::kClients, stores);
    run(Order::kServers, stores);
  }
  // Without the lock: a handler may end objects that have handlers.
  void run(ExitHandler::Order order, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                     [order](const ExitHandler* handler) { return handler->order_ == order; });
      if (next == waiting_.end()) return;
      running_ = *next;
      waiting_.erase(next);
      lock.unlock();
      running_->run_(deadline);
      lock.lock();
      running_ = nullptr;
      returned_.notify_all();
    }
  }

  std::mutex mutex_;  // guards the fields below
  std::condition_variable returned_;
  std::set<const ExitHandler*> waiting_;
  const ExitHandler* running_ = nullptr;  // changed by the thread that ends the process alone
  std::atomic<bool> has_run_ = false;
  Deadline end_ = Deadline::never();  // of groups and workers; constant once has_run_ is true
};

ExitHandler::ExitHandler(Order order, std::function<void(const Deadline&)> run) : order_(order), run_(std::move(run)) {
  ExitHandlers::of_process().add(this);
}

ExitHandler::~ExitHandler() { ExitHandlers::of_process().remove(this); }

void ExitHandler::hold_failed_call() noexcept { ExitHandlers::of_process().hold(); }

// The functions of atexit and the destructors of libraries run in the reverse order of their registration.
void ExitHandler::run_before_loaded_libraries() { std::atexit(&ExitHandlers::run_at_exit); }

void run_tasks_until(const Deadline& deadline, std::vector<std::function<void()>> tasks) {
  if (tasks.empty()) return;
  base::Executor executor(kThreads);
  for (auto& task : tasks) {
    try {
      executor.add([task = std::move(task)] {
        ends_process = true;
        task();
      });
    } catch (const std::exception& e) {
      log(BP_LOG_WARN, "cannot start a thread to end a group at exit ({}); its last messages may be lost", e.what());
    }
  }
  executor.stop(deadline);
}

}  // namespace backplane::core
