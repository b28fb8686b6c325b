// SPDX-License-Identifier: Apache-2.0
//
// Isolated calls for which there is no memory.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "group/isolation.hpp"
#include "support/eventually.hpp"
#include "support/failing_allocation.hpp"
#include "support/scoped_log.hpp"

namespace backplane::core {
namespace {

// A backend whose operations end when the test says so.
struct PatientBackend {
  static inline std::atomic<bool> is_done = false;
  static inline std::atomic<int> released = 0;

  static int32_t submit(void*, const bp_op*, bp_work** work, bp_error*) {
    *work = reinterpret_cast<bp_work*>(&is_done);
    return BP_OK;
  }
  static int32_t work_wait(void*, bp_work*, int64_t, bp_error*) { return is_done ? BP_OK : BP_AGAIN; }
  static int32_t work_test(void*, bp_work*, bp_error*) { return is_done ? BP_OK : BP_AGAIN; }
  static void work_cancel(void*, bp_work*) {}
  static void work_release(void*, bp_work*) { ++released; }
  static void abort(void*, const bp_error*) {}
  static void destroy(void*) {}
  static const void* extension(void*, const char*) { return nullptr; }
  static int32_t init(const bp_backend*, const bp_init* request, bp_agent* agent, bp_error*) {
    static const bp_process_group_api api = {sizeof api,   0,     submit,  work_test, work_wait, work_cancel,
                                             work_release, abort, destroy, extension};
    agent->api = &api;
    agent->world_size = request->world_size;
    return BP_OK;
  }
};

class IsolationMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    PatientBackend::is_done = false;
    PatientBackend::released = 0;
    bp_backend backend = {};
    backend.init = PatientBackend::init;
    bp_init init = {};
    init.struct_size = sizeof init;
    init.world_size = 1;
    init.timeout_ns = INT64_C(60) * 1000000000;
    bp_agent agent;
    bp_error_init(&err_);
    ASSERT_EQ(isolation_->init(
                  backend, init, [] { return false; }, &agent, &err_),
              BP_OK);
    bp_op op;
    bp_op_init(&op, BP_BARRIER);
    ASSERT_EQ(api().submit(isolation_->self(), &op, &work_, &err_), BP_OK);
  }
  const bp_process_group_api& api() const { return isolation_->api(); }
  // Whether an allocation failed.
  bool wait_with_failing_allocation(uint64_t number) {
    return test::with_failing_allocation(number,
                                         [this] { status_ = api().work_wait(isolation_->self(), work_, 0, &err_); });
  }

  const std::shared_ptr<Isolation> isolation_ = std::make_shared<Isolation>("patient", nullptr);
  bp_work* work_ = nullptr;
  int32_t status_ = BP_OK;
  bp_error err_;
};

TEST_F(IsolationMemoryTest, AWaitThatCannotBeMadeIsNotTheEndOfTheOperation) {
  uint64_t number = 1;
  while (wait_with_failing_allocation(number)) {
    EXPECT_EQ(status_, BP_AGAIN) << number << ": " << err_.text;
    ASSERT_LT(++number, 100U);
  }
  EXPECT_GT(number, 1U) << "a wait allocates";
  EXPECT_EQ(status_, BP_AGAIN) << err_.text;
  PatientBackend::is_done = true;
  EXPECT_EQ(api().work_wait(isolation_->self(), work_, INT64_C(60) * 1000000000, &err_), BP_OK) << err_.text;
  api().work_release(isolation_->self(), work_);
  api().destroy(isolation_->self());
  EXPECT_EQ(PatientBackend::released, 1);
  EXPECT_FALSE(isolation_->hung());
}

// The backend still has the operation and its buffers, which are kept.
TEST_F(IsolationMemoryTest, AnAbortEndsAnOperationForWhichNoWaitCanBeMade) {
  test::ScopedLog log;
  bp_error cause;
  bp_error_init(&cause);
  bp_error_set(&cause, BP_CANCELLED, 0, -1, "aborted by the test");
  api().abort(isolation_->self(), &cause);
  EXPECT_TRUE(test::eventually([this] { return wait_with_failing_allocation(1) && status_ != BP_AGAIN; }));
  EXPECT_EQ(status_, BP_CANCELLED) << err_.text;
  api().work_release(isolation_->self(), work_);
  EXPECT_EQ(PatientBackend::released, 0);
  EXPECT_TRUE(isolation_->hung());
  EXPECT_NE(log.text().find("backend patient could not be asked, for lack of a thread or of memory, for work_wait"),
            std::string::npos)
      << log.text();
}

}  // namespace
}  // namespace backplane::core
