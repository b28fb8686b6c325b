// SPDX-License-Identifier: Apache-2.0
//
// Future, the result of rpc_async.
#pragma once

#include <semaphore.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "backplane/detail/rpc_content.hpp"

namespace backplane::rpc {
namespace detail {

using RpcHandle = std::shared_ptr<bp_rpc>;

// Marks the thread as blocked during its lifetime, so that the worker can start another one for calls.
class Waiting {
 public:
  Waiting() { bp_rpc_wait_begin(); }
  ~Waiting() { bp_rpc_wait_end(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
};

// One waiting thread. It has its own semaphore, because a condition variable would acquire the mutex again at wake-up
// and take one more system call to release it.
class Waiter {
 public:
  Waiter() { sem_init(&woken_, 0, 0); }
  ~Waiter() { sem_destroy(&woken_); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  void wake() { sem_post(&woken_); }
  bool wait_briefly() {
    const auto woken = [](void* self) { return int32_t{sem_trywait(&static_cast<Waiter*>(self)->woken_) == 0}; };
    return bp_rpc_wait_briefly(woken, this) != 0;
  }
  void wait() {
    while (sem_wait(&woken_) != 0) {
    }
  }
  bool wait_until(std::chrono::steady_clock::time_point end) {
    const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(end.time_since_epoch()).count();
    const timespec at = {ns / 1000000000, ns % 1000000000};
    while (sem_clockwait(&woken_, CLOCK_MONOTONIC, &at) != 0) {
      if (errno == ETIMEDOUT) return false;
    }
    wake();  // for ThreadSanitizer, which knows sem_post and sem_wait but not sem_clockwait
    wait();
    return true;
  }

  Waiter* next = nullptr;  // of the same future

 private:
  sem_t woken_;
};

// What a result comes from, for error texts.
struct ResultSource {
  std::string function;  // empty: a reference
  int worker = -1;
};

template <typename T>
class FutureState {
 public:
  using Value = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

  explicit FutureState(RpcHandle rpc, ResultSource source = {}) : rpc_(std::move(rpc)), source_(std::move(source)) {}

  const RpcHandle& rpc() const { return rpc_; }
  void set_call(uint64_t id) { call_ = id; }
  uint64_t call() const { return call_; }

  // End the future. Only the first call of finish or fail has an effect.
  void finish(PayloadHandle received) {
    end([&received, this] { received_ = std::move(received); });
  }
  void finish(Value value) {
    end([&value, this] { value_.emplace(std::move(value)); });
  }
  void fail(const bp_error& error) {
    std::unique_ptr<bp_error> copy(new (std::nothrow) bp_error(error));
    end([&copy, this] {
      error_ = std::move(copy);
      failed_ = true;
    });
  }
  void fail(std::exception_ptr failure) {
    end([&failure, this] { failure_ = std::move(failure); });
  }

  bool done() {
    check_process();
    const std::lock_guard lock(mutex_);
    return done_;
  }
  // Throws Status::kCancelled, and cancels the call, if the program interrupts this thread.
  bool wait(Timeout timeout) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kLook{100};
    check_process();
    const bool forever = timeout < Timeout::zero();
    const auto end = forever ? Clock::time_point::max() : Clock::now() + std::min(timeout, Timeout::max() / 2);
    Waiter self;
    {
      const std::lock_guard lock(mutex_);
      if (done_) return true;
      self.next = std::exchange(waiters_, &self);
    }
    const Waiting waiting;
    if (forever && self.wait_briefly()) return true;
    for (auto look = Clock::now() + kLook; !self.wait_until(std::min(end, look)); look += kLook) {
      const bool is_interrupted = look < end && bp_interrupted() != 0;
      if (!is_interrupted && Clock::now() < end) continue;
      if (!forget(&self)) {
        self.wait();  // wake follows
        return true;
      }
      if (!is_interrupted) return false;
      bp_rpc_cancel(rpc_.get(), call_);
      backplane::detail::fail(Status::kCancelled, "interrupted by the program");
    }
    return true;
  }
  // Requires that the future is done.
  T get() {
    if (error_) throw Error(*error_);
    if (failure_) std::rethrow_exception(failure_);
    if (failed_) backplane::detail::fail(Status::kResource, "a call failed, and there was no memory for its error");
    if constexpr (std::is_void_v<T>) {
      return;
    } else {
      return value_ ? *value_ : decode();
    }
  }
  // Runs `callback` on a thread of the worker when the future is done.
  void when_done(std::function<void()> callback) {
    check_process();
    {
      const std::lock_guard lock(mutex_);
      if (!done_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    run(std::move(callback));
  }

 private:
  // Throws Status::kInvalid in a child made by fork, where the call never ends.
  void check_process() const {
    if (rpc_ == nullptr || bp_rpc_rank(rpc_.get()) >= 0) return;
    int32_t rank = -1;
    backplane::detail::call(bp_rpc_find, static_cast<const bp_rpc*>(rpc_.get()), "", &rank);
  }
  T decode() {
    const auto subject = [this] {
      const char* const name = bp_rpc_worker_name(rpc_.get(), source_.worker);
      const std::string worker =
          name == nullptr ? "" : "worker '" + std::string(name) + "' (rank " + std::to_string(source_.worker) + ")";
      if (source_.function.empty()) return "the value" + (worker.empty() ? "" : " of " + worker);
      return "the result of '" + source_.function + "' on " + worker;
    };
    const auto hint = [] { return std::string("ask for the type that the worker returns"); };
    return Unpacker(received_).template take<T>(subject, hint, source_.worker);
  }
  // Removes a waiter. Returns false if the future is done; then the waiter is woken.
  bool forget(const Waiter* waiter) {
    const std::lock_guard lock(mutex_);
    if (done_) return false;
    Waiter** link = &waiters_;
    while (*link != waiter) link = &(*link)->next;
    *link = waiter->next;
    return true;
  }
  template <typename Set>
  void end(const Set& set) {
    std::vector<std::function<void()>> callbacks;
    Waiter* waiter = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (done_) return;
      set();
      done_ = true;
      callbacks.swap(callbacks_);
      waiter = std::exchange(waiters_, nullptr);
    }
    while (waiter != nullptr) std::exchange(waiter, waiter->next)->wake();  // the waiter may not exist afterwards
    for (auto& callback : callbacks) run(std::move(callback));
  }
  void run(std::function<void()> callback) {
    bp_rpc_run(
        rpc_.get(),
        [](void* ctx) {
          const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(ctx));
          (*owned)();
        },
        new std::function<void()>(std::move(callback)));
  }

  const RpcHandle rpc_;
  const ResultSource source_;
  std::atomic<uint64_t> call_ = 0;
  std::mutex mutex_;
  Waiter* waiters_ = nullptr;  // a list; empty once the future is done
  bool done_ = false;
  bool failed_ = false;  // the call failed; `error_` is NULL if there was no memory for it
  PayloadHandle received_;
  std::optional<Value> value_;
  std::unique_ptr<bp_error> error_;  // of the call; each waiter throws its own exception
  std::exception_ptr failure_;       // of a function given to `then`
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace detail

// The result of a call that may still be running. Copies share it. Destroying all copies does not affect the call. A
// call ends at its timeout at the latest.
template <typename T>
class Future {
 public:
  using State = detail::FutureState<T>;
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool done() const { return state_->done(); }
  // Blocks until the call has ended and returns its result. Throws the call's failure. Each call decodes the result
  // again. Interrupted by the program (bp_set_interrupt_hook) it cancels the call; so does wait_for.
  T wait() const {
    state_->wait(kNoTimeout);
    return state_->get();
  }
  // Blocks for at most `timeout`. Returns false if the call has not ended by then; it continues.
  bool wait_for(Timeout timeout) const { return state_->wait(timeout); }
  // Ends the call with Status::kCancelled and informs the callee (see cancelled()). Does not block.
  void cancel() const { bp_rpc_cancel(state_->rpc().get(), state_->call()); }

  // Returns a future of function(this future), which runs on a thread of the worker when this future is done. Its
  // failure is the exception that `function` throws.
  template <typename Function>
  auto then(Function function) const {
    using Result = std::invoke_result_t<Function&, const Future&>;
    auto next = std::make_shared<detail::FutureState<Result>>(state_->rpc());
    next->set_call(state_->call());
    state_->when_done([self = *this, next, function = std::move(function)]() mutable {
      try {
        if constexpr (std::is_void_v<Result>) {
          function(self);
          next->finish(std::monostate());
        } else {
          next->finish(function(self));
        }
      } catch (...) {
        next->fail(std::current_exception());
      }
    });
    return Future<Result>(next);
  }

  // The bp_rpc_done of a call of the C API: ends the future.
  static void ended(void* ctx, bp_rpc_payload* result, const bp_error* err) {
    const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(ctx));
    if (result == nullptr) {
      (*state)->fail(*err);
    } else {
      (*state)->finish(detail::own(result));
    }
  }
  // Starts a call of the C API, call(done, ctx, &id, &err), and returns its future.
  template <typename Call>
  static Future start(const detail::RpcHandle& rpc, const Call& call, detail::ResultSource source = {}) {
    auto state = std::make_shared<State>(rpc, std::move(source));
    auto ctx = std::make_unique<std::shared_ptr<State>>(state);
    bp_error err;
    bp_error_init(&err);
    uint64_t id = 0;
    if (call(&Future::ended, ctx.get(), &id, &err) != BP_OK) throw Error(err);
    ctx.release();  // NOLINT(bugprone-unused-return-value): `ended` owns it
    state->set_call(id);
    return Future(std::move(state));
  }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace backplane::rpc
