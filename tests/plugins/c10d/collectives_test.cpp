// SPDX-License-Identifier: Apache-2.0
//
// Collectives of the plugin c10d over a torch whose calls do not return: later ones end nevertheless.
#include "collectives.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <semaphore>
#include <string>

#include "support/agents.hpp"

namespace backplane::test {
namespace {

constexpr int64_t kLimit = INT64_C(20'000'000'000);  // ns

std::counting_semaphore<> begun(0);
std::counting_semaphore<> may_end(0);

int32_t collect(int64_t, const c10d::CollectiveCall*, bp_error*) {
  begun.release();
  may_end.acquire();
  return BP_OK;
}

void ignore(int64_t) {}

// One of two ranks, with a collective that torch performs and one behind it.
class BlockedCollectives : public testing::Test {
 protected:
  BlockedCollectives() {
    table_.collect = collect;
    table_.close = ignore;
    table_.drop = ignore;
    collectives_ = std::make_shared<c10d::Collectives>(std::make_shared<c10d::TorchGroup>(table_, 1, 0, 2));
    collectives_->start();
    performed_ = collectives_->submit(make_op(BP_BARRIER));
    begun.acquire();
    queued_ = collectives_->submit(make_op(BP_BARRIER));
  }
  ~BlockedCollectives() override {
    may_end.release();
    collectives_->stop(base::Deadline::after(kLimit));
  }

  static sdk::Failure failure_of(sdk::Work& work) {
    try {
      EXPECT_FALSE(work.wait(kLimit)) << "it did not fail";
    } catch (const sdk::Failure& failure) {
      return failure;
    }
    return {BP_TIMEOUT, "it did not end"};
  }

  void expect_refused(int32_t status, int32_t peer_rank) {
    try {
      const auto later = collectives_->submit(make_op(BP_BARRIER));
      ADD_FAILURE() << "a later collective was accepted";
    } catch (const sdk::Failure& failure) {
      EXPECT_EQ(failure.status(), status) << failure.what();
      EXPECT_EQ(failure.peer_rank(), peer_rank);
    }
  }

  c10d::Table table_ = {};
  std::shared_ptr<c10d::Collectives> collectives_;
  std::unique_ptr<sdk::Work> performed_;
  std::unique_ptr<sdk::Work> queued_;
};

TEST_F(BlockedCollectives, FailOnceOneIsCancelled) {
  performed_->cancel();
  EXPECT_EQ(failure_of(*performed_).status(), BP_CANCELLED);
  const sdk::Failure why = failure_of(*queued_);
  EXPECT_EQ(why.status(), BP_CANCELLED) << why.what();
  EXPECT_NE(std::string(why.what()).find("a collective was cancelled by this rank"), std::string::npos) << why.what();
  expect_refused(BP_CANCELLED, -1);
}

TEST_F(BlockedCollectives, FailOnceARankIsLost) {
  collectives_->lost(sdk::peer_lost(1, "it was killed"), false);
  for (const auto& work : {performed_.get(), queued_.get()}) EXPECT_EQ(failure_of(*work).status(), BP_PEER_LOST);
  expect_refused(BP_PEER_LOST, 1);
}

// The first one has a moment to end, because the rank may have contributed to it.
TEST_F(BlockedCollectives, FailSoonAfterARankHasLeft) {
  collectives_->lost(sdk::peer_left(1), true);
  for (const auto& work : {performed_.get(), queued_.get()}) EXPECT_EQ(failure_of(*work).status(), BP_PEER_LOST);
  expect_refused(BP_PEER_LOST, 1);
}

}  // namespace
}  // namespace backplane::test
