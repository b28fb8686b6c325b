// SPDX-License-Identifier: Apache-2.0
//
// Backends that do not come back: whatever one of them does, the caller gets its error in time, destroy returns, and
// the next group works.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backplane/backplane.hpp"
#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane {
namespace {

// Where a call gets stuck until the test opens the gate, which it does at the end.
class Gate {
 public:
  void pass(const std::string& function) {
    constexpr std::chrono::seconds kLonger{40};  // than all limits of a test together
    std::unique_lock lock(mutex_);
    if (function != stuck_in_) return;
    ++caught_;
    const bool was_opened = changed_.wait_for(lock, kLonger, [this, before = opened_] { return opened_ != before; });
    EXPECT_TRUE(was_opened) << "the caller waits for " << function << " to come back";
    if (!was_opened) stuck_in_.clear();
  }
  void close(const std::string& function) {
    const std::lock_guard lock(mutex_);
    stuck_in_ = function;
    caught_ = 0;
  }
  // How many calls were stuck.
  int open() {
    const std::lock_guard lock(mutex_);
    ++opened_;
    stuck_in_.clear();
    changed_.notify_all();
    return caught_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string stuck_in_;
  int opened_ = 0;  // times
  int caught_ = 0;
};

Gate& gate() {
  static Gate* const instance = new Gate;
  return *instance;
}

// A group of one rank. A barrier is done when somebody waits for it, a recv never.
struct Sticky {
  static inline std::atomic<int> submitted = 0;
  static inline std::atomic<int> released = 0;

  static int32_t submit(void*, const bp_op* op, bp_work** work, bp_error*) {
    gate().pass("submit");
    *work = reinterpret_cast<bp_work*>(new uint32_t(op->kind));
    ++submitted;
    return BP_OK;
  }
  static int32_t work_wait(void*, bp_work* work, int64_t, bp_error*) {
    gate().pass("work_wait");
    return *reinterpret_cast<uint32_t*>(work) == BP_BARRIER ? BP_OK : BP_AGAIN;
  }
  static int32_t work_test(void* self, bp_work* work, bp_error* err) { return work_wait(self, work, 0, err); }
  static void work_cancel(void*, bp_work*) { gate().pass("work_cancel"); }
  static void work_release(void*, bp_work* work) {
    gate().pass("work_release");
    delete reinterpret_cast<uint32_t*>(work);
    ++released;
  }
  static void abort(void*, const bp_error*) { gate().pass("abort"); }
  static void destroy(void*) { gate().pass("destroy"); }
  static const void* extension(void*, const char*) { return nullptr; }

  static int32_t init(const bp_backend*, const bp_init* request, bp_agent* agent, bp_error*) {
    static const bp_process_group_api api = {sizeof api,   0,     submit,  work_test, work_wait, work_cancel,
                                             work_release, abort, destroy, extension};
    gate().pass("init");
    agent->kind = BP_KIND_PROCESS_GROUP;
    agent->api = &api;
    agent->rank = request->rank;
    agent->world_size = request->world_size;
    return BP_OK;
  }
};

void register_sticky() {
  static const bp_capability barrier = {sizeof barrier, BP_BARRIER, 0, 0, 0};
  static const bp_capability recv = {sizeof recv, BP_RECV, BP_ALL_DTYPES, 0, BP_BIT(BP_HOST)};
  static const std::array<const bp_capability*, 2> capabilities = {&barrier, &recv};
  static bp_backend backend = {};
  static const bool registered = [] {
    backend.struct_size = sizeof backend;
    backend.kinds = BP_KIND_PROCESS_GROUP;
    backend.id = "sticky";
    backend.version = "1.0";
    backend.summary = "gets stuck";
    backend.capabilities = capabilities.data();
    backend.capability_count = capabilities.size();
    backend.init = Sticky::init;
    return bp_register_backend(nullptr, &backend, nullptr, nullptr) == BP_OK;
  }();
  ASSERT_TRUE(registered);
}

class Isolation : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { register_sticky(); }
  void TearDown() override { gate().open(); }

  static ProcessGroup start(Timeout timeout) {
    GroupOptions options;
    options.backend = "sticky";
    options.store = Store::inproc();
    options.rank = 0;
    options.world_size = 1;
    options.timeout = timeout;
    return ProcessGroup::create(options);
  }
};

TEST_F(Isolation, LetsAWellBehavedBackendWork) {
  ProcessGroup group = start(std::chrono::seconds(60));
  const int submitted = Sticky::submitted;
  const int released = Sticky::released;
  for (int i = 0; i < 100; ++i) group.barrier();
  group.destroy();
  EXPECT_EQ(Sticky::submitted - submitted, 100);
  EXPECT_EQ(Sticky::released - released, 100);
}

TEST_P(Isolation, GivesTheCallerItsErrorAndLetsItGo) {
  ProcessGroup group = start(std::chrono::milliseconds(300));
  const auto begin = std::chrono::steady_clock::now();
  gate().close(GetParam());
  std::string said;
  try {
    std::vector<uint8_t> byte(1);
    group.recv(byte, 0);
  } catch (const Error& error) {
    said = error.what();
  }
  group.destroy();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_NE(said.find("timed out"), std::string::npos) << said;
  EXPECT_LT(taken.count(), 30) << "the sum of all limits is below 3 s";
  EXPECT_GE(gate().open(), 1);
  ProcessGroup next = start(std::chrono::seconds(60));
  next.barrier();
}

INSTANTIATE_TEST_SUITE_P(EachFunction, Isolation, testing::Values("work_wait", "work_cancel", "abort"),
                         [](const auto& info) { return std::string(info.param); });

using IsolationAtTheEnd = Isolation;

TEST_P(IsolationAtTheEnd, LetsTheCallerGo) {
  ProcessGroup group = start(std::chrono::seconds(60));
  gate().close(GetParam());
  group.barrier();
  group.destroy();
  EXPECT_EQ(gate().open(), 1);
  start(std::chrono::seconds(60)).barrier();
}

INSTANTIATE_TEST_SUITE_P(EachFunction, IsolationAtTheEnd, testing::Values("work_release", "destroy"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Isolation, KeepsTheLimitOfInit) {
  gate().close("init");
  try {
    start(std::chrono::milliseconds(200));
    ADD_FAILURE() << "init was stuck and yet succeeded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("init did not return in time"), std::string::npos) << error.what();
  }
  EXPECT_EQ(gate().open(), 1);
}

TEST_F(Isolation, AWaitWithoutLimitEndsOnAbort) {
  ProcessGroup group = start(kNoTimeout);
  gate().close("work_wait");
  Work work = group.barrier({.async_op = true});
  std::thread other([&group] { group.abort("somebody pulled the plug"); });
  try {
    work.wait();
    ADD_FAILURE() << "the wait was stuck and yet succeeded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("somebody pulled the plug"), std::string::npos) << error.what();
  }
  other.join();
  EXPECT_EQ(gate().open(), 1);
}

TEST_F(Isolation, RefusesANonsensicalWish) {
  const test::ScopedVariable wish("BACKPLANE_ISOLATE", "perhaps");
  std::string text;
  EXPECT_EQ(test::failure_of([] { start(std::chrono::seconds(60)); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("BACKPLANE_ISOLATE is 'perhaps'; it must be auto, always or never"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane
