// SPDX-License-Identifier: Apache-2.0
#include "liveness/exit_handler.hpp"

#include <unistd.h>

#include <mutex>
#include <set>
#include <utility>

namespace backplane::core {
namespace {

constexpr int64_t kLimitNs = 1'000'000'000;  // for all of them together

}  // namespace

// Those that are to be called. Its destructor is the end of the process.
class ExitHandlers {
 public:
  static void add(ExitHandler* parting) {
    static ExitHandlers calls;  // made with the first one, destroyed by exit
    const std::lock_guard lock(shared().mutex);
    shared().all.insert(parting);
  }
  static void remove(ExitHandler* parting) {
    const std::lock_guard lock(shared().mutex);
    shared().all.erase(parting);
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
    if (::getpid() != process_) return;  // the threads that would speak are the parent's
    const Deadline deadline = Deadline::after(kLimitNs);
    const std::lock_guard lock(shared().mutex);
    for (const ExitHandler::Turn turn : {ExitHandler::Turn::kClients, ExitHandler::Turn::kServers}) {
      for (const ExitHandler* parting : shared().all) {
        if (parting->turn_ == turn) parting->part_(deadline);
      }
    }
    shared().all.clear();
  }

  // Never destroyed: other threads may use it while the process ends.
  static Shared& shared() {
    static Shared* const instance = new Shared;
    return *instance;
  }

  const pid_t process_ = ::getpid();
};

ExitHandler::ExitHandler(Turn turn, std::function<void(Deadline)> part) : turn_(turn), part_(std::move(part)) {
  ExitHandlers::add(this);
}

ExitHandler::~ExitHandler() { ExitHandlers::remove(this); }

}  // namespace backplane::core
