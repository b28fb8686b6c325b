// SPDX-License-Identifier: Apache-2.0
//
// Backends whose functions hang: the caller gets an error in time, destroy returns, and the next group works.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backplane/backplane.hpp"
#include "support/environment.hpp"
#include "support/groups.hpp"
#include "support/scoped_log.hpp"
#include "support/system_calls.hpp"

namespace backplane {
namespace {

// Blocks calls of one function until the test opens the gate.
class Gate {
 public:
  void pass(const std::string& function) {
    constexpr std::chrono::seconds kTestLimit{40};  // longer than all limits of a test together
    std::unique_lock lock(mutex_);
    if (function != blocked_function_) return;
    ++blocked_;
    changed_.notify_all();
    const bool was_opened = changed_.wait_for(lock, kTestLimit, [this, before = opened_] { return opened_ != before; });
    EXPECT_TRUE(was_opened) << "the caller waits for " << function << " to return";
    if (!was_opened) blocked_function_.clear();
  }
  void close(const std::string& function) {
    const std::lock_guard lock(mutex_);
    blocked_function_ = function;
    blocked_ = 0;
  }
  // Waits until a call is blocked.
  bool await_blocked() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(40), [this] { return blocked_ > 0; });
  }
  // Returns the number of calls that were blocked.
  int open() {
    const std::lock_guard lock(mutex_);
    ++opened_;
    blocked_function_.clear();
    changed_.notify_all();
    return blocked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string blocked_function_;
  int opened_ = 0;  // number of times
  int blocked_ = 0;
};

Gate& gate() {
  static Gate* const instance = new Gate;
  return *instance;
}

// A backend for one rank. A barrier is done when it is waited for, a recv when it is aborted.
struct HangingBackend {
  static inline std::atomic<int> submitted = 0;
  static inline std::atomic<std::thread::id> submitter;
  static inline std::atomic<int> released = 0;
  static inline std::atomic<int> destroyed = 0;
  static inline std::atomic<bool> aborted = false;
  static inline std::atomic<bool> ignores_abort = false;

  static int32_t submit(void*, const bp_op* op, bp_work** work, bp_error*) {
    gate().pass("submit");
    *work = reinterpret_cast<bp_work*>(new uint32_t(op->kind));
    ++submitted;
    submitter = std::this_thread::get_id();
    return BP_OK;
  }
  static int32_t work_wait(void*, bp_work* work, int64_t, bp_error* err) {
    gate().pass("work_wait");
    if (*reinterpret_cast<uint32_t*>(work) == BP_BARRIER) return BP_OK;
    if (!aborted || ignores_abort) return BP_AGAIN;
    return bp_error_set(err, BP_CANCELLED, 0, -1, "ended by the backend");
  }
  static int32_t work_test(void* self, bp_work* work, bp_error* err) { return work_wait(self, work, 0, err); }
  static void work_cancel(void*, bp_work*) { gate().pass("work_cancel"); }
  static void work_release(void*, bp_work* work) {
    gate().pass("work_release");
    delete reinterpret_cast<uint32_t*>(work);
    ++released;
  }
  static void abort(void*, const bp_error*) {
    gate().pass("abort");
    aborted = true;
  }
  static void destroy(void*) {
    gate().pass("destroy");
    ++destroyed;
  }
  static const void* extension(void*, const char*) { return nullptr; }

  static int32_t init(const bp_backend*, const bp_init* request, bp_agent* agent, bp_error*) {
    static const bp_process_group_api api = {sizeof api,   0,     submit,  work_test, work_wait, work_cancel,
                                             work_release, abort, destroy, extension};
    gate().pass("init");
    aborted = false;
    agent->kind = BP_KIND_PROCESS_GROUP;
    agent->api = &api;
    agent->rank = request->rank;
    agent->world_size = request->world_size;
    return BP_OK;
  }
};

// As "hanging", and as "bounded", of which only init may hang.
void register_hanging() {
  static const bp_capability barrier = {sizeof barrier, BP_BARRIER, 0, 0, 0};
  static const bp_capability recv = {sizeof recv, BP_RECV, BP_ALL_DTYPES, 0, BP_BIT(BP_HOST)};
  static const std::array<const bp_capability*, 2> capabilities = {&barrier, &recv};
  static bp_backend backend = {};
  static bp_backend bounded = {};
  static const bool registered = [] {
    backend.struct_size = sizeof backend;
    backend.kinds = BP_KIND_PROCESS_GROUP;
    backend.id = "hanging";
    backend.version = "1.0";
    backend.summary = "hangs";
    backend.capabilities = capabilities.data();
    backend.capability_count = capabilities.size();
    backend.init = HangingBackend::init;
    bounded = backend;
    bounded.id = "bounded";
    bounded.flags = BP_BACKEND_BOUNDED | BP_BACKEND_BLOCKING_INIT;
    return bp_register_backend(nullptr, &backend, nullptr, nullptr) == BP_OK &&
           bp_register_backend(nullptr, &bounded, nullptr, nullptr) == BP_OK;
  }();
  ASSERT_TRUE(registered);
}

class Isolation : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { register_hanging(); }
  void TearDown() override {
    gate().open();
    HangingBackend::ignores_abort = false;
  }

  static ProcessGroup start(Timeout timeout, const char* backend = "hanging") {
    GroupOptions options;
    options.backend = backend;
    options.store = Store::inproc();
    options.rank = 0;
    options.world_size = 1;
    options.timeout = timeout;
    return ProcessGroup::create(options);
  }
};

TEST_F(Isolation, DoesNotAffectABackendThatReturns) {
  ProcessGroup group = start(std::chrono::seconds(60));
  const int submitted = HangingBackend::submitted;
  const int released = HangingBackend::released;
  for (int i = 0; i < 100; ++i) group.barrier();
  group.destroy();
  EXPECT_EQ(HangingBackend::submitted - submitted, 100);
  EXPECT_EQ(HangingBackend::released - released, 100);
}

TEST_P(Isolation, TheCallerGetsItsErrorAndDestroyReturns) {
  ProcessGroup group = start(std::chrono::seconds(60));
  const auto begin = std::chrono::steady_clock::now();
  gate().close(GetParam());
  std::string text;
  try {
    std::vector<uint8_t> byte(1);
    group.recv(byte, 0, 0, {.timeout = std::chrono::milliseconds(300)});
  } catch (const Error& error) {
    text = error.what();
  }
  group.destroy();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_NE(text.find("timed out"), std::string::npos) << text;
  EXPECT_LT(taken.count(), 30) << "the sum of all limits is below 3 s";
  EXPECT_GE(gate().open(), 1);
  ProcessGroup next = start(std::chrono::seconds(60));
  next.barrier();
}

INSTANTIATE_TEST_SUITE_P(EachFunction, Isolation, testing::Values("work_wait", "work_cancel", "abort"),
                         [](const auto& info) { return std::string(info.param); });

using IsolationAtTheEnd = Isolation;

TEST_P(IsolationAtTheEnd, DestroyReturns) {
  ProcessGroup group = start(std::chrono::seconds(60));
  gate().close(GetParam());
  group.barrier();
  group.destroy();
  EXPECT_EQ(gate().open(), 1);
  start(std::chrono::seconds(60)).barrier();
}

INSTANTIATE_TEST_SUITE_P(EachFunction, IsolationAtTheEnd, testing::Values("work_release", "destroy"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Isolation, InitEndsAtItsTimeout) {
  gate().close("init");
  try {
    start(std::chrono::seconds(1));
    ADD_FAILURE() << "a blocked init succeeded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("init did not return in time"), std::string::npos) << error.what();
  }
  EXPECT_EQ(gate().open(), 1);
}

// Its other functions run on the caller's thread.
TEST_F(Isolation, IsForInitAloneIfOnlyInitMayHang) {
  gate().close("init");
  EXPECT_THROW(start(std::chrono::seconds(1), "bounded"), Error);
  EXPECT_EQ(gate().open(), 1);
  ProcessGroup group = start(std::chrono::seconds(60), "bounded");
  group.barrier();
  EXPECT_EQ(HangingBackend::submitter, std::this_thread::get_id());
  start(std::chrono::seconds(60)).barrier();
  EXPECT_NE(HangingBackend::submitter, std::this_thread::get_id());
}

TEST_F(Isolation, AWaitWithoutTimeoutEndsOnAbort) {
  ProcessGroup group = start(kNoTimeout);
  gate().close("work_wait");
  Work work = group.barrier({.async_op = true});
  std::thread other([&group] { group.abort("aborted by the test"); });
  try {
    work.wait();
    ADD_FAILURE() << "a blocked wait succeeded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("aborted by the test"), std::string::npos) << error.what();
  }
  other.join();
  EXPECT_EQ(gate().open(), 1);
}

// The first calls after the time that an abort leaves: the backend must be asked before it is accused.
TEST_F(Isolation, CallsLongAfterAnAbortReachTheBackend) {
  test::ScopedLog log;
  ProcessGroup group = start(kNoTimeout);
  const int released = HangingBackend::released;
  const int destroyed = HangingBackend::destroyed;
  std::array<std::vector<uint8_t>, 3> bytes;
  bytes.fill(std::vector<uint8_t>(1));
  std::array<Work, 3> works = {group.irecv(bytes[0], 0), group.irecv(bytes[1], 0), group.irecv(bytes[2], 0)};
  group.abort("aborted by the test");
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  works[0].cancel();
  for (Work& work : works) {
    std::string text;
    EXPECT_EQ(test::failure_of([&work] { work.wait(); }, &text), Status::kCancelled);
    EXPECT_NE(text.find("ended by the backend"), std::string::npos) << text;
  }
  group.destroy();
  EXPECT_EQ(HangingBackend::released - released, 3);
  EXPECT_EQ(HangingBackend::destroyed - destroyed, 1);
  EXPECT_EQ(log.text().find("backend hanging"), std::string::npos) << log.text();
}

TEST_F(Isolation, NamesABackendThatLeavesOperationsInFlightAfterAnAbort) {
  test::ScopedLog log;
  HangingBackend::ignores_abort = true;
  ProcessGroup group = start(kNoTimeout);
  std::vector<uint8_t> byte(1);
  Work work = group.irecv(byte, 0);
  group.abort("aborted by the test");
  EXPECT_THROW(work.wait(), Error);
  group.destroy();
  EXPECT_NE(log.text().find("backend hanging leaves operations in flight half a second after abort"), std::string::npos)
      << log.text();
}

// A slow machine, not a backend that hangs: the call returns before its operation is released.
TEST_F(Isolation, ASlowCancelIsNotAccused) {
  test::ScopedLog log;
  ProcessGroup group = start(kNoTimeout);
  const int destroyed = HangingBackend::destroyed;
  std::vector<uint8_t> byte(1);
  Work work = group.irecv(byte, 0);
  gate().close("work_cancel");
  work.cancel();
  EXPECT_EQ(gate().open(), 1);
  group.abort("aborted by the test");
  EXPECT_THROW(work.wait(), Error);
  group.destroy();
  EXPECT_EQ(HangingBackend::destroyed - destroyed, 1);
  EXPECT_EQ(log.text(), "");
}

// The only thread is in work_wait, and this process may start no other one for the abort that would end it.
TEST_F(Isolation, AbortNeedsNoThread) {
  ProcessGroup group = start(kNoTimeout);
  std::vector<uint8_t> byte(1);
  Work work = group.irecv(byte, 0);
  gate().close("work_wait");
  std::thread waiting([&work] { EXPECT_THROW(work.wait(), Error); });
  ASSERT_TRUE(gate().await_blocked());
  std::thread aborting([&group] {
    ASSERT_TRUE(test::answer_with(SECCOMP_RET_ERRNO | EAGAIN, SYS_clone3));  // of this thread only
    ASSERT_TRUE(test::answer_with(SECCOMP_RET_ERRNO | EAGAIN, SYS_clone));
    group.abort("aborted by the test");
  });
  aborting.join();
  EXPECT_TRUE(HangingBackend::aborted);
  waiting.join();
  EXPECT_EQ(gate().open(), 1);
}

TEST_F(Isolation, RefusesAnInvalidValue) {
  const test::ScopedVariable variable("BACKPLANE_ISOLATE", "perhaps");
  std::string text;
  EXPECT_EQ(test::failure_of([] { start(std::chrono::seconds(60)); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("BACKPLANE_ISOLATE is 'perhaps'; it must be auto, always or never"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane
