// SPDX-License-Identifier: Apache-2.0
#include "store/parting.hpp"

#include <unistd.h>

#include <mutex>
#include <set>
#include <utility>

namespace backplane::core {
namespace {

constexpr int64_t kLimitNs = 1'000'000'000;  // for all of them together

}  // namespace

// Those that are to be called. Its destructor is the end of the process.
class PartingCalls {
 public:
  static void add(Parting* parting) {
    static PartingCalls calls;  // made with the first one, destroyed by exit
    const std::lock_guard lock(shared().mutex);
    shared().all.insert(parting);
  }
  static void remove(Parting* parting) {
    const std::lock_guard lock(shared().mutex);
    shared().all.erase(parting);
  }
  PartingCalls(const PartingCalls&) = delete;
  PartingCalls& operator=(const PartingCalls&) = delete;

 private:
  struct Shared {
    std::mutex mutex;
    std::set<Parting*> all;  // guarded by mutex
  };

  PartingCalls() = default;
  ~PartingCalls() {
    if (::getpid() != process_) return;  // the threads that would speak are the parent's
    const Deadline deadline = Deadline::after(kLimitNs);
    const std::lock_guard lock(shared().mutex);
    for (const Parting::Turn turn : {Parting::Turn::kClients, Parting::Turn::kServers}) {
      for (const Parting* parting : shared().all) {
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

Parting::Parting(Turn turn, std::function<void(Deadline)> part) : turn_(turn), part_(std::move(part)) {
  PartingCalls::add(this);
}

Parting::~Parting() { PartingCalls::remove(this); }

}  // namespace backplane::core
