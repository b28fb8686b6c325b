// SPDX-License-Identifier: Apache-2.0
//
// A store over the program's own key-value space. Each call runs on its own thread, because callbacks may return late
// or never. A caller waits at most one second beyond its deadline, and not beyond an interruption.
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "liveness/rank_list.hpp"
#include "store/callbacks.hpp"
#include "store/checks.hpp"
#include "store/interruption.hpp"
#include "store/store.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kCallbackNs = 1'000'000'000;  // the shortest timeout of a callback, and the longest of `get`
constexpr int64_t kFirstPollNs = 1'000'000;     // between polls of a `get` that does not wait itself
constexpr int64_t kMaxPollNs = 50'000'000;

int64_t callback_timeout(const Deadline& deadline) {
  return deadline.infinite() ? BP_NO_TIMEOUT : std::max(deadline.left_ns(), kCallbackNs);
}

// Signalled when a call ends or a handle is interrupted.
struct Signal {
  std::mutex mutex;
  std::condition_variable changed;
};

// One call of a handle; shared with its thread.
class CallbackCall {
 public:
  CallbackCall(std::shared_ptr<const Callbacks> callbacks, std::shared_ptr<Signal> signal)
      : callbacks_(std::move(callbacks)), signal_(std::move(signal)) {}

  const Callbacks* operator->() const { return callbacks_.get(); }

  // On the call's thread: waits until the key exists. Nothing at the deadline or if the caller detached the call.
  std::optional<std::string> await(const std::string& key, const Deadline& deadline) {
    for (int64_t pause_ns = kFirstPollNs;;) {
      if (detached()) return std::nullopt;
      const bool last = deadline.passed();
      const Deadline look = std::min(deadline, Deadline::after(kCallbackNs));
      if (auto value = callbacks_->get(key, look.left_ns())) return value;
      if (last) return std::nullopt;
      if (look.passed()) continue;
      std::unique_lock lock(signal_->mutex);
      signal_->changed.wait_until(lock, std::min(look, Deadline::after(pause_ns)).at(), [this] { return detached_; });
      pause_ns = std::min(2 * pause_ns, kMaxPollNs);
    }
  }

  // The last call of the thread.
  void end(std::exception_ptr failure) {
    const std::lock_guard lock(signal_->mutex);
    done_ = true;
    failure_ = std::move(failure);
    signal_->changed.notify_all();
  }

  // Waits for the thread. Detaches it at the limit or when the caller is interrupted.
  void finish(std::thread thread, const Deadline& limit, const Interruption& interruption) {
    std::unique_lock lock(signal_->mutex);
    while (!done_ && !interruption.raised()) {
      if (limit.passed()) break;
      wait_on(signal_->changed, lock, limit);
    }
    if (!done_) {
      detached_ = true;
      signal_->changed.notify_all();
      thread.detach();
      return;
    }
    lock.unlock();
    thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  bool detached() const {
    const std::lock_guard lock(signal_->mutex);
    return detached_;
  }

 private:
  const std::shared_ptr<const Callbacks> callbacks_;
  const std::shared_ptr<Signal> signal_;
  // Guarded by the signal's mutex.
  bool done_ = false;
  bool detached_ = false;
  std::exception_ptr failure_;
};

class CallbackMembership final : public Membership {
 public:
  CallbackMembership(std::shared_ptr<Store> store, const std::string& scope, int32_t rank)
      : store_(std::move(store)), departed_key_(scope + "bp/alive/departed"), rank_(rank) {}
  ~CallbackMembership() override {
    if (rank_ < 0) return;
    try {
      append_rank(*store_, departed_key_, rank_, Deadline::after(0));
    } catch (const std::exception&) {
      // The store is lost.
    }
  }
  CallbackMembership(const CallbackMembership&) = delete;
  CallbackMembership& operator=(const CallbackMembership&) = delete;

  bool watches() const override { return false; }

  Absences absences(Deadline deadline) override {
    Absences absences;
    for (const int32_t rank : read_ranks(*store_, departed_key_, deadline)) absences.emplace(rank, Absence::kLeft);
    return absences;
  }

 private:
  const std::shared_ptr<Store> store_;
  const std::string departed_key_;
  const int32_t rank_;
};

class CallbackStore final : public Store {
 public:
  CallbackStore(std::shared_ptr<const Callbacks> callbacks, std::shared_ptr<Signal> signal,
                std::shared_ptr<Interruption> interruption)
      : signal_(std::move(signal)), interruption_(std::move(interruption)), callbacks_(std::move(callbacks)) {}
  // Callbacks are constructed last: if this fails, the program's `release` is not called.
  CallbackStore(const bp_store_callbacks& table, std::shared_ptr<Signal> signal,
                std::shared_ptr<Interruption> interruption)
      : signal_(std::move(signal)),
        interruption_(std::move(interruption)),
        callbacks_(std::make_shared<const Callbacks>(table)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    check_value(key, value);
    call(key, deadline, [key = std::string(key), value = std::string(value), deadline](CallbackCall& space) {
      space->set(key, value, callback_timeout(deadline));
      return true;
    });
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_key(key);
    const Allowance allowance(deadline);
    auto value = call(key, deadline,
                      [key = std::string(key), deadline](CallbackCall& space) { return space.await(key, deadline); });
    if (!value) fail_missing(quoted(key), allowance, describe());
    return std::move(*value);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    check_key(key);
    return call(key, deadline, [key = std::string(key), delta, deadline](CallbackCall& space) {
      return space->add(key, delta, callback_timeout(deadline));
    });
  }

  void wait(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    if (keys.empty()) return interruption_->check();
    const Allowance allowance(deadline);
    const auto missing = call(keys.front(), deadline, [keys, deadline](CallbackCall& space) {
      std::vector<std::string> absent;
      for (const std::string& key : keys) {
        if (!space.await(key, deadline)) absent.push_back(key);
      }
      return absent;
    });
    if (!missing.empty()) fail_missing(listed(missing), allowance, describe());
  }

  bool check(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    if (keys.empty()) {
      interruption_->check();
      return true;
    }
    return call(keys.front(), deadline, [keys](CallbackCall& space) {
      return std::all_of(keys.begin(), keys.end(),
                         [&space](const std::string& key) { return space.await(key, Deadline::after(0)).has_value(); });
    });
  }

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    check_values(key, expected, desired);
    return call(
        key, deadline,
        [key = std::string(key), expected = std::string(expected), desired = std::string(desired), deadline](
            CallbackCall& space) { return space->compare_set(key, expected, desired, callback_timeout(deadline)); });
  }

  bool remove(std::string_view key, Deadline deadline) override {
    check_key(key);
    return call(key, deadline, [key = std::string(key), deadline](CallbackCall& space) {
      return space->remove(key, callback_timeout(deadline));
    });
  }

  int64_t num_keys(Deadline deadline) override {
    return call({}, deadline, [deadline](CallbackCall& space) { return space->num_keys(callback_timeout(deadline)); });
  }

  std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)>, Deadline) override {
    // Not a view, which the abort of a group would interrupt: the rank must still leave.
    return std::make_unique<CallbackMembership>(make(callbacks_), enrolment.scope, enrolment.rank);
  }

  void interrupt(int32_t status, const std::string& why) override { interruption_->raise(status, why); }

  bool interrupted() const override { return interruption_->raised(); }

  std::shared_ptr<Store> view() override {
    return std::make_shared<CallbackStore>(callbacks_, signal_, interruption_->child());
  }

  std::string describe() const override { return callbacks_->name(); }

  // An independent handle, over a table or over the callbacks of another handle.
  template <typename Source>
  static std::shared_ptr<Store> make(const Source& source) {
    auto signal = std::make_shared<Signal>();
    auto interruption = std::make_shared<Interruption>([signal] {
      const std::lock_guard lock(signal->mutex);
      signal->changed.notify_all();
    });
    return std::make_shared<CallbackStore>(source, std::move(signal), std::move(interruption));
  }

 private:
  // Runs `body` on a thread of its own and returns its result. `body` owns what it uses.
  template <typename Body, typename Result = std::invoke_result_t<Body, CallbackCall&>>
  Result call(std::string_view key, const Deadline& deadline, Body body) const {
    interruption_->check();
    struct Made {
      CallbackCall space;
      std::optional<Result> result;
    };
    const Allowance allowance(deadline);
    const auto made = std::make_shared<Made>(Made{{callbacks_, signal_}, std::nullopt});
    std::thread thread = start_quiet_thread("bp-store-call", [made, body = std::move(body)]() mutable {
      std::exception_ptr failure;
      try {
        made->result.emplace(body(made->space));
      } catch (...) {
        failure = std::current_exception();
      }
      made->space.end(failure);
    });
    made->space.finish(std::move(thread), deadline.later(kCallbackNs), *interruption_);
    if (!made->space.detached()) return std::move(*made->result);
    interruption_->check();
    fail(BP_TIMEOUT,
         "a callback of {} did not return within {} and {} more (request for {}); its thread is detached. A callback "
         "must "
         "return before its timeout",
         describe(), allowance.text(), duration_text(kCallbackNs), key.empty() ? "the number of keys" : quoted(key));
  }

  const std::shared_ptr<Signal> signal_;
  const std::shared_ptr<Interruption> interruption_;
  const std::shared_ptr<const Callbacks> callbacks_;
};

}  // namespace

std::shared_ptr<Store> make_callback_store(const bp_store_callbacks& callbacks) {
  return CallbackStore::make(callbacks);
}

}  // namespace backplane::core
