// SPDX-License-Identifier: Apache-2.0
#include "liveness/exit_handler.hpp"

#include <unistd.h>

#include <mutex>
#include <set>
#include <utility>

namespace backplane::core {
namespace {

constexpr int64_t kLimitNs = 1'000'000'000;  // for all handlers together

}  // namespace

// The registered handlers. The destructor of the static instance, which exit runs, calls them.
class ExitHandlers {
 public:
  static void add(ExitHandler* handler) {
    static ExitHandlers calls;  // constructed with the first handler, destroyed by exit
    const std::lock_guard lock(shared().mutex);
    shared().all.insert(handler);
  }
  static void remove(ExitHandler* handler) {
    const std::lock_guard lock(shared().mutex);
    shared().all.erase(handler);
  }
  ExitHandlers(const ExitHandlers&) = delete;
  ExitHandlers& operator=(const ExitHandlers&) = delete;

 private:
  struct Shared {
    std::mutex mutex;
    std::set<ExitHandler*> all;  // guarded by mutex
  };

  ExitHandlers() = default;
  ~ExitHandlers() {
    if (::getpid() != process_) return;  // the threads that a handler needs are the parent's
    const Deadline deadline = Deadline::after(kLimitNs);
    const std::lock_guard lock(shared().mutex);
    for (const ExitHandler::Order order : {ExitHandler::Order::kClient, ExitHandler::Order::kServer}) {
      for (const ExitHandler* handler : shared().all) {
        if (handler->order_ == order) handler->run_(deadline);
      }
    }
    shared().all.clear();
  }

  // Never destroyed: other threads use it while the process ends.
  static Shared& shared() {
    static Shared* const instance = new Shared;
    return *instance;
  }

  const pid_t process_ = ::getpid();
};

ExitHandler::ExitHandler(Order order, std::function<void(Deadline)> run) : order_(order), run_(std::move(run)) {
  ExitHandlers::add(this);
}

ExitHandler::~ExitHandler() { ExitHandlers::remove(this); }

}  // namespace backplane::core
