// SPDX-License-Identifier: Apache-2.0
#include "rpc/values.hpp"

#include <gtest/gtest.h>

#include "rpc/cancels.hpp"
#include "rpc/fork_table.hpp"
#include "support/failures.hpp"

namespace backplane::core::rpc {
namespace {

// "status text"; "0 " if it does not fail.
template <typename Call>
std::string failure_in_values(const Call& call) {
  std::string text;
  const int32_t status = test::status_of<Error>(call, &text);
  return std::to_string(status) + " " + text;
}

constexpr Id kValue = {0, 1};
constexpr Id kFirst = {0, 2};
constexpr Id kSecond = {1, 1};

TEST(RpcValuesTest, ExistAsLongAsTheirForks) {
  Values values;
  EXPECT_TRUE(values.create(kValue, kFirst, 0, "f"));
  values.fork(kValue, kSecond, 1);
  values.fork(kValue, kSecond, 1);  // received twice
  values.drop(kValue, kFirst);
  values.drop(kValue, kFirst);
  EXPECT_EQ(values.size(), 1U);
  ASSERT_EQ(values.claims().size(), 1U);
  EXPECT_EQ(values.claims()[0].holders, std::vector<int32_t>{1});
  values.drop(kValue, kSecond);
  EXPECT_EQ(values.size(), 0U);
  EXPECT_EQ(failure_in_values([&values] { values.fork(kValue, kSecond, 1); }),
            "1 the referenced value no longer exists on its owner");
}

TEST(RpcValuesTest, AreNotCreatedAfterTheirForkWasDropped) {
  Values values;
  values.drop(kValue, kFirst);
  EXPECT_FALSE(values.create(kValue, kFirst, 0, "f"));
  EXPECT_EQ(values.size(), 0U);
}

TEST(RpcValuesTest, ForksThatWereDroppedFirstAreNotRegistered) {
  Values values;
  values.create(kValue, kFirst, 0, "f");
  values.drop(kValue, kSecond);
  values.fork(kValue, kSecond, 1);
  EXPECT_EQ(values.claims()[0].holders, std::vector<int32_t>{0});
}

TEST(RpcValuesTest, AreCreatedOnce) {
  Values values;
  values.create(kValue, kFirst, 0, "f");
  EXPECT_EQ(failure_in_values([&values] { values.create(kValue, kSecond, 1, "g"); }),
            "1 a value with this id exists already");
}

TEST(RpcValuesTest, AreReturnedByTheLastDrop) {
  int destroyed = 0;
  const bp_rpc_value raw = {sizeof(bp_rpc_value), 0, &destroyed, [](void* count) { ++*static_cast<int*>(count); },
                            nullptr};
  Values values;
  values.create(kValue, kFirst, 0, "f");
  values.set(kValue, std::make_shared<Value>(raw));
  auto dropped = values.drop(kValue, kFirst);
  EXPECT_EQ(destroyed, 0);
  dropped.reset();
  EXPECT_EQ(destroyed, 1);
  int32_t status = BP_OK;
  values.create(kValue, kSecond, 0, "f");
  values.when_ready(kValue, [&status](const std::shared_ptr<Value>&, const Error* error) { status = error->status(); });
  values.drop(kValue, kSecond);
  EXPECT_EQ(status, BP_INVALID);
}

TEST(RpcValuesTest, AreRemovedWithTheLastHolderThatDies) {
  Values values;
  values.create(kValue, kFirst, 2, "f");
  values.fork(kValue, kSecond, 1);
  values.drop_all_of(2);
  EXPECT_EQ(values.size(), 1U);
  values.drop_all_of(1);
  EXPECT_EQ(values.size(), 0U);
}

TEST(RpcValuesTest, ReportFailuresToWaiters) {
  Values values;
  values.create(kValue, kFirst, 0, "f");
  std::string error_text;
  values.when_ready(kValue,
                    [&error_text](const std::shared_ptr<Value>&, const Error* error) { error_text = error->what(); });
  EXPECT_EQ(failure_in_values([&values] { values.wait(kValue, Deadline::after(0)); }),
            "3 the referenced value did not exist within the timeout");
  values.set(kValue, Error(BP_INTERNAL, "no"));
  EXPECT_EQ(error_text, "no");
  EXPECT_EQ(failure_in_values([&values] { values.wait(kValue, Deadline::never()); }), "8 no");
}

TEST(RpcValuesTest, DoNotCallRemovedWaiters) {
  Values values;
  values.create(kValue, kFirst, 0, "f");
  std::string called;
  for (uint64_t call = 1; call <= 3; ++call) {
    values.when_ready(
        kValue, [&called, call](const std::shared_ptr<Value>&, const Error*) { called += std::to_string(call); },
        static_cast<int32_t>(call % 2), call);
  }
  EXPECT_TRUE(values.stop_waiting(kValue, 1, 3));
  EXPECT_FALSE(values.stop_waiting(kValue, 1, 2));  // of another worker
  values.drop_all_of(0);                            // holds the only fork, and waits: the other waiters are called
  EXPECT_EQ(called, "1");
}

TEST(RpcForksTest, AbandonedForksAreRefusedWhenTheyArrive) {
  ForkTable forks;
  const std::vector<Fork> message = {{0, kValue, kFirst}, {0, kValue, kSecond}};
  EXPECT_EQ(forks.abandon(message).size(), 2U);
  EXPECT_EQ(forks.abandon(message).size(), 2U);  // received twice
  EXPECT_FALSE(forks.hold(message));
}

TEST(RpcForksTest, HeldForksAreNotAbandoned) {
  ForkTable forks;
  const std::vector<Fork> message = {{0, kValue, kFirst}};
  EXPECT_TRUE(forks.hold(message));
  EXPECT_TRUE(forks.abandon(message).empty());
  EXPECT_TRUE(forks.hold(message));
}

TEST(RpcForksTest, RepliesAreKeptUntilTheyAreTaken) {
  ForkTable forks;
  forks.add_reply(1, 7, {{0, kValue, kFirst}});
  EXPECT_TRUE(forks.take_reply(2, 7).empty());
  EXPECT_EQ(forks.take_reply(1, 7).size(), 1U);
  EXPECT_TRUE(forks.take_reply(1, 7).empty());
}

TEST(RpcCancelsTest, EarlyCancelsAreKeptForTheirCall) {
  EarlyCancels cancels;
  cancels.add(1, 7);
  cancels.add(1, 7);  // received twice
  EXPECT_FALSE(cancels.take(2, 7));
  EXPECT_FALSE(cancels.take(1, 8));
  EXPECT_TRUE(cancels.take(1, 7));
  EXPECT_FALSE(cancels.take(1, 7));
}

TEST(RpcCancelsTest, EarlyCancelsAreKeptPerPeer) {
  EarlyCancels cancels;
  cancels.add(1, 7);
  for (uint64_t call = 1; call <= 10000; ++call) cancels.add(2, call);
  EXPECT_TRUE(cancels.take(1, 7));
  EXPECT_TRUE(cancels.take(2, 10000));
  EXPECT_FALSE(cancels.take(2, 1));
}

std::vector<uint64_t> resent(SentCancels* cancels, int32_t to, SentCancels::Clock::time_point now) {
  std::vector<uint64_t> calls;
  for (const SentCancels::Cancel& each : cancels->take_resends(to, now)) calls.push_back(each.call);
  return calls;
}

TEST(RpcCancelsTest, TakenCancelsMakeRoom) {
  EarlyCancels cancels;
  cancels.add(1, 1);
  for (uint64_t call = 2; call <= 2000; ++call) {
    cancels.add(1, call);
    EXPECT_TRUE(cancels.take(1, call));
  }
  EXPECT_TRUE(cancels.take(1, 1));
}

TEST(RpcCancelsTest, TheLastCancelsAreResent) {
  SentCancels cancels;
  const auto now = SentCancels::Clock::now();
  EXPECT_TRUE(cancels.take_resends(1, now).empty());
  for (uint64_t call = 1; call <= 1000; ++call) cancels.add(1, {call, 0});
  cancels.add(2, {5, 77});
  const auto last = resent(&cancels, 1, now);
  EXPECT_EQ(last.back(), 1000U);
  EXPECT_LT(last.size(), 1000U);
  const auto other = cancels.take_resends(2, now);
  ASSERT_EQ(other.size(), 1U);
  EXPECT_EQ(other[0].call, 5U);
  EXPECT_EQ(other[0].timeout_ns, 77);
  cancels.forget(1);
  EXPECT_TRUE(cancels.take_resends(1, now).empty());
}

TEST(RpcCancelsTest, ResendsAreLimited) {
  SentCancels cancels;
  auto now = SentCancels::Clock::now();
  cancels.add(1, {5, 0});
  for (int i = 0; i < SentCancels::kMaxRounds; ++i) EXPECT_EQ(resent(&cancels, 1, now), std::vector<uint64_t>{5});
  EXPECT_EQ(resent(&cancels, 1, now), std::vector<uint64_t>());
  now += std::chrono::seconds(1);
  EXPECT_EQ(resent(&cancels, 1, now), std::vector<uint64_t>{5});
  cancels.add(2, {6, 0, {}, SentCancels::kMaxRounds});
  for (int i = 0; i < SentCancels::kMaxRounds; ++i) {
    now += std::chrono::seconds(1);
    EXPECT_EQ(resent(&cancels, 2, now), std::vector<uint64_t>{6});
  }
  now += std::chrono::seconds(1);
  EXPECT_EQ(resent(&cancels, 2, now), std::vector<uint64_t>());
}

TEST(RpcValuesTest, FailWaitersAtClose) {
  Values values;
  values.create(kValue, kFirst, 0, "f");
  int32_t status = BP_OK;
  values.when_ready(kValue, [&status](const std::shared_ptr<Value>&, const Error* error) { status = error->status(); });
  values.close(Error(BP_CANCELLED, "left"));
  EXPECT_EQ(status, BP_CANCELLED);
  EXPECT_EQ(failure_in_values([&values] { values.create(kValue, kFirst, 0, "f"); }), "4 left");
}

}  // namespace
}  // namespace backplane::core::rpc
