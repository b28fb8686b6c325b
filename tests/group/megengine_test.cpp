// SPDX-License-Identifier: Apache-2.0
#include "backplane/compat/megengine.hpp"

#include <atomic>
#include <stdexcept>
#include <string>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

using SynchronizedTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, SynchronizedTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 4)),
                         backend_test_name);

TEST_P(SynchronizedTest, ReturnsWhenAllRanksHaveReturned) {
  std::atomic<int> done = 0;
  in_group([this, &done](ProcessGroup& group) {
    const int result = compat::synchronized(
        [&done](int add) {
          ++done;
          return add + 1;
        },
        group)(41);
    EXPECT_EQ(result, 42);
    EXPECT_EQ(done, world_size());
    compat::synchronized([] {}, group)();
  });
}

// In the original the other ranks kept waiting.
TEST_P(SynchronizedTest, AFailureOfOneRankFailsAll) {
  in_group([this](ProcessGroup& group) {
    const int failed_rank = world_size() - 1;
    auto load = compat::synchronized(
        [&group, failed_rank] {
          if (group.rank() == failed_rank) throw std::runtime_error("there is no such file");
          return std::string("loaded");
        },
        group);
    if (group.rank() == failed_rank) {
      try {
        load();
        ADD_FAILURE() << "what failed has returned";
      } catch (const std::exception& e) {
        EXPECT_STREQ(e.what(), "there is no such file");  // the exception that this rank threw
      }
    } else {
      std::string text;
      EXPECT_EQ(failure_of([&load] { load(); }, &text), Status::kCancelled);
      EXPECT_NE(text.find("rank " + std::to_string(failed_rank)), std::string::npos) << text;
      EXPECT_NE(text.find("there is no such file"), std::string::npos) << text;
    }
  });
}

// In the original, a rank that repeated its barrier was counted twice, and the others continued without the missing
// rank.
TEST_P(SynchronizedTest, ARetryDoesNotCountTwice) {
  in_group([this](ProcessGroup& group) {
    ProcessGroup all = group.with_backend(backend());
    auto wait_for_all = compat::synchronized([] {}, all, std::chrono::milliseconds(200));
    const int attempts = group.rank() == 0 ? 2 : 1;
    const bool comes = group.rank() == 0 || group.rank() < world_size() - 1;  // the last rank never does
    for (int i = 0; comes && i < attempts && world_size() > 1; ++i) {
      EXPECT_NE(failure_of([&wait_for_all] { wait_for_all(); }), Status::kInternal);
    }
    group.barrier();
  });
}

TEST(DistributedTest, OutsideOfAJobItCallsTheFunction) {
  EXPECT_FALSE(compat::is_distributed());
  EXPECT_EQ(compat::synchronized([] { return 3; })(), 3);
}

using OverrideTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, OverrideTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 4)),
                         backend_test_name);

TEST_P(OverrideTest, AppliesToItsScopeAndThread) {
  in_group([](ProcessGroup& group) {
    for (const std::string& backend : built_backends()) {
      const compat::OverrideBackend outer(backend, group);
      EXPECT_EQ(get_backend(), backend);
      EXPECT_EQ(get_rank(), group.rank());
      EXPECT_EQ(get_world_size(), group.world_size());
      {
        const compat::OverrideBackend inner("inproc");  // with the ranks of the outer override
        EXPECT_EQ(get_backend(), "inproc");
        int sum = 1;
        all_reduce(as_buffer(sum));
        EXPECT_EQ(sum, group.world_size());
      }
      EXPECT_EQ(get_backend(), backend);
      EXPECT_EQ(get_backend(group), group.backend());  // an explicit group is not overridden
      int sum = 1;
      all_reduce(as_buffer(sum));
      EXPECT_EQ(sum, group.world_size());
      std::thread([] { EXPECT_EQ(failure_of([] { get_backend(); }), Status::kInvalid); }).join();
    }
    EXPECT_EQ(failure_of([] { get_backend(); }), Status::kInvalid);  // there is no default group in this test
    std::string text;
    EXPECT_EQ(failure_of([&group] { const compat::OverrideBackend none("no_such", group); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("unknown backend 'no_such'"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace backplane::test
