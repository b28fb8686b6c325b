// SPDX-License-Identifier: Apache-2.0
//
// Timeouts: 0 does not wait, BP_NO_TIMEOUT waits without limit, BP_INHERIT_TIMEOUT uses the group's timeout.
#include <latch>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

using std::chrono::milliseconds;

class TimeoutTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, TimeoutTest, testing::ValuesIn(built_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(TimeoutTest, ZeroDoesNotWait) {
  std::latch looked(1);
  in_group(GetParam(), 2, [&looked](ProcessGroup& group) {
    int word = group.rank();
    if (group.rank() == 0) {
      looked.wait();
      group.send(as_buffer(word), 1);
      return;
    }
    const CallOptions at_once = {.timeout = Timeout::zero()};
    EXPECT_EQ(failure_of([&] { group.recv(as_buffer(word), 0, 0, at_once); }), Status::kTimeout);
    looked.count_down();
    group.recv(as_buffer(word), 0);  // the group remains usable
    EXPECT_EQ(word, 0);
  });
}

// The group's timeout ends an operation without a timeout, but not one with BP_NO_TIMEOUT.
TEST_P(TimeoutTest, TheGroupsTimeoutIsInheritedUnlessDisabled) {
  constexpr std::chrono::seconds kOwn(5);  // also to start it
  std::latch ended(1);
  const Store store = Store::inproc();
  on_ranks(2, [&](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(GetParam(), store, rank, 2, kOwn));
    int word = rank;
    if (rank == 0) {
      ended.wait();
      std::this_thread::sleep_for(kOwn + milliseconds(200));  // the subject of the test
      group.send(as_buffer(word), 1, 0, {.timeout = kNoTimeout});
    } else {
      EXPECT_EQ(failure_of([&] { group.recv(as_buffer(word), 0); }), Status::kTimeout);
      ended.count_down();
      group.recv(as_buffer(word), 0, 0, {.timeout = kNoTimeout});
      EXPECT_EQ(word, 0);
    }
    group.barrier({.timeout = kNoTimeout});
  });
}

TEST(Timeouts, OfRequestsHaveTheSameMeaning) {
  in_group("inproc", 2, [](ProcessGroup& group) {
    int word = 7;
    if (group.rank() == 0) {
      group.barrier();
      group.send(as_buffer(word), 1);
      return;
    }
    Work work = group.irecv(as_buffer(word), 0);
    EXPECT_FALSE(work.wait_for(Timeout::zero()));
    group.barrier();
    EXPECT_TRUE(work.wait_for(kNoTimeout));
    EXPECT_TRUE(work.wait_for(Timeout::zero()));
  });
}

TEST(Timeouts, OfStoresHaveTheSameMeaning) {
  Store store = Store::inproc();
  EXPECT_EQ(failure_of([&store] { store.get("nothing", Timeout::zero()); }), Status::kTimeout);
  std::thread setter([&store] { store.set("something", "x"); });
  EXPECT_EQ(store.get("something", kNoTimeout), "x");
  setter.join();
  EXPECT_EQ(store.get("something"), "x");
}

}  // namespace
}  // namespace backplane::test
