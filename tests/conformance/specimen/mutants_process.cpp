// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

std::atomic<int> starting = 0;
std::atomic<Specimen*> waited_for = nullptr;
std::atomic<bool> forked = false;
std::atomic<int> groups_left = 0;
int unguarded = 0;

class StartsOneAtATime final : public Specimen {
  void start(const sdk::Context& context) override {
    const bool alone = starting.fetch_add(1) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    try {
      if (!alone) throw sdk::Failure(BP_INTERNAL, "another group is just being started");
      Specimen::start(context);
    } catch (...) {
      starting.fetch_sub(1);
      throw;
    }
    starting.fetch_sub(1);
  }
};

class WaitsOneAtATime final : public Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    Specimen* nobody = nullptr;
    if (!waited_for.compare_exchange_strong(nobody, this) && nobody != this) {
      throw sdk::Failure(BP_INTERNAL, "another group is just waiting");
    }
    const auto done = [this] {
      Specimen* me = this;
      waited_for.compare_exchange_strong(me, nullptr);
    };
    try {
      const bool over = Specimen::wait(task, timeout_ns);
      done();
      return over;
    } catch (...) {
      done();
      throw;
    }
  }
};

class ServesOneThread final : public Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    const bool alone = waiting_.fetch_add(1) == 0;
    const auto leave = [this] { waiting_.fetch_sub(1); };
    try {
      if (!alone) throw sdk::Failure(BP_INTERNAL, "another thread is just waiting");
      const bool over = Specimen::wait(task, timeout_ns);
      leave();
      return over;
    } catch (...) {
      leave();
      throw;
    }
  }
  std::atomic<int> waiting_ = 0;
};

class KnowsItsThread final : public Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    {
      const Lock lock(mutex_);
      thread_ = std::this_thread::get_id();
    }
    return Specimen::submit(op);
  }
  bool wait(Task& task, int64_t timeout_ns) override {
    {
      const Lock lock(mutex_);
      if (thread_ != std::this_thread::get_id()) throw sdk::Failure(BP_INTERNAL, "called by another thread");
    }
    return Specimen::wait(task, timeout_ns);
  }
  std::thread::id thread_;
};

// Shuts the connections down in each child, which also ends those of the parent.
class ShutsDownInChildren final : public Specimen {
  void start(const sdk::Context& context) override {
    static const int registered = pthread_atfork(nullptr, nullptr, [] {
      for (int fd = 3; fd < 256; ++fd) ::shutdown(fd, SHUT_RDWR);
    });
    (void)registered;
    Specimen::start(context);
  }
};

class WaitsForChildren final : public Specimen {
  void start(const sdk::Context& context) override {
    static const int registered = pthread_atfork(
        nullptr, [] { forked.store(true); }, nullptr);
    (void)registered;
    Specimen::start(context);
  }
  void close() noexcept override {
    if (forked.load()) std::this_thread::sleep_for(std::chrono::seconds(7));
    Specimen::close();
  }
};

// Exit handlers of a process that forgets that it may be a child with copies of the groups.
class ShutsDownAtExit final : public Specimen {
  void start(const sdk::Context& context) override {
    static const int registered = std::atexit([] {
      for (int fd = 3; fd < 256; ++fd) ::shutdown(fd, SHUT_RDWR);
    });
    (void)registered;
    Specimen::start(context);
  }
};

class WaitsAtExit final : public Specimen {
  void start(const sdk::Context& context) override {
    static const int registered = std::atexit([] {
      if (groups_left.load() > 0)
        std::this_thread::sleep_for(std::chrono::seconds(20));  // a child has no thread to end one
    });
    (void)registered;
    groups_left.fetch_add(1);
    Specimen::start(context);
  }
  void close() noexcept override {
    Specimen::close();
    groups_left.fetch_sub(1);
  }
};

class InheritsDescriptors final : public Specimen {
  void start(const sdk::Context& context) override {
    Specimen::start(context);
    ::fcntl(wake_, F_SETFD, 0);
  }
};

class IsInterrupted final : public Specimen {
  bool wait(Task& task, int64_t timeout_ns) override {
    const TimePoint deadline = deadline_after(timeout_ns);
    while (!Specimen::wait(task, 0)) {
      if (Clock::now() >= deadline) return false;
      if (::poll(nullptr, 0, 1) < 0 && errno == EINTR) throw sdk::Failure(BP_INTERNAL, "interrupted by a signal");
    }
    return true;
  }
};

class RaisesSigpipe final : public Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    {
      const Lock lock(mutex_);
      if (op.kind == BP_SEND && peer(op.peer).broken && !aborted_) ::raise(SIGPIPE);
    }
    return Specimen::submit(op);
  }
};

class TakesSignals final : public Specimen {
  void start(const sdk::Context& context) override {
    Specimen::start(context);
    idle_ = std::thread([this] {
      Lock lock(mutex_);
      changed_.wait(lock, [this] { return over_; });
    });
  }
  void close() noexcept override {
    {
      const Lock lock(mutex_);
      over_ = true;
      changed_.notify_all();
    }
    if (idle_.joinable()) idle_.join();
    Specimen::close();
  }
  std::thread idle_;
  bool over_ = false;
};

class IgnoresSigpipe final : public Specimen {
  void start(const sdk::Context& context) override {
    ::signal(SIGPIPE, SIG_IGN);
    Specimen::start(context);
  }
};

class Races final : public Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    ++unguarded;
    return Specimen::submit(op);
  }
};

class ServesSixteenThreads final : public Specimen {
  std::unique_ptr<sdk::Work> submit(const bp_op& op) override {
    {
      const Lock lock(mutex_);
      served_.insert(std::this_thread::get_id());
      if (served_.size() > 16) throw sdk::Failure(BP_RESOURCE, "more threads than slots use the group");
    }
    return Specimen::submit(op);
  }
  std::set<std::thread::id> served_;
};

class ReturnsNullHandle final : public Specimen {
  const void* extension(std::string_view id) override {
    native_.handle = nullptr;
    return Specimen::extension(id);
  }
};

class ReturnsNewHandle final : public Specimen {
  const void* extension(std::string_view id) override {
    if (id == BP_EXT_NATIVE) native_.handle = static_cast<std::byte*>(native_.handle) + 1;
    return Specimen::extension(id);
  }
};

}  // namespace

std::vector<Mutant> process_mutants() {
  return {
      {"process.concurrent-init", "one group can be started at a time", made<StartsOneAtATime>},
      {"process.concurrent-groups", "one group can wait at a time", made<WaitsOneAtATime>},
      {"process.concurrent-threads", "one thread can wait at a time", made<ServesOneThread>},
      {"process.concurrent-threads:2", "sixteen threads can use a group", made<ServesSixteenThreads>},
      {"process.any-thread", "only the thread that has submitted may wait", made<KnowsItsThread>},
      {"process.fork-child", "a forked child shuts down the connections", made<ShutsDownInChildren>},
      {"process.fork-exit", "an exit handler shuts down the connections", made<ShutsDownAtExit>},
      {"process.fork-exit:2", "an exit handler waits for the end of the groups", made<WaitsAtExit>},
      {"process.fork-outlived", "destroy waits for forked children", made<WaitsForChildren>},
      {"process.cloexec", "a descriptor is not close-on-exec", made<InheritsDescriptors>},
      {"process.native-handle", "the handle is NULL", made<ReturnsNullHandle>},
      {"process.native-handle:2", "the handle is another one each time", made<ReturnsNewHandle>},
      {"process.eintr-storm", "a signal ends a wait", made<IsInterrupted>},
      {"process.sigpipe", "a send to a dead rank raises SIGPIPE", made<RaisesSigpipe>},
      {"process.signals-blocked", "a thread takes signals", made<TakesSignals>},
      {"process.manners", "SIGPIPE is ignored for good", made<IgnoresSigpipe>},
      {"process.tsan-clean", "a counter without a lock", made<Races>},
  };
}

}  // namespace backplane::specimen
