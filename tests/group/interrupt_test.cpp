// SPDX-License-Identifier: Apache-2.0
//
// The interruption hook ends blocking calls within a fraction of a second and leaves no buffer in use.
#include "support/eventually.hpp"
#include "support/groups.hpp"
#include "support/interruption.hpp"

namespace backplane::test {
namespace {

using InterruptTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, InterruptTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2)), backend_test_name);

TEST_P(InterruptTest, EndsMessagesWithoutBreakingTheGroup) {
  const Hooked hooked;
  in_group([](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    std::vector<int> value(10);
    expect_interrupted("recv", [&] { group.recv(value, peer, 1); });
    Work work = group.irecv(value, peer, 2);
    expect_interrupted(
        "wait", [&] { work.wait(); }, "cancelled");
    EXPECT_EQ(failure_of([&] { work.is_completed(); }), Status::kCancelled) << "the operation is still in flight";
    std::vector<int> sum(10, 1);
    group.all_reduce(sum);
    EXPECT_EQ(sum.back(), 2);
  });
}

TEST_P(InterruptTest, EndsCollectivesAndBreaksTheirGroup) {
  const Hooked hooked;
  in_group([](ProcessGroup& group) {
    ProcessGroup broken = group.new_group({0, 1});
    std::vector<int> value(10);
    if (group.rank() == 0) {
      expect_interrupted("all_reduce", [&] { broken.all_reduce(value); });
      EXPECT_NE(bp_group_status(broken.get(), nullptr), BP_OK);
    }
    group.barrier();
  });
}

TEST(Interrupt, EndsTheStartOfAGroup) {
  const Hooked hooked;
  for (const std::string& backend : built_backends()) {
    const Store store = Store::inproc();
    expect_interrupted("start over " + backend,
                       [&] { ProcessGroup::create(group_options(backend, store, 0, 2, std::chrono::seconds(60))); });
  }
}

TEST(Interrupt, EndsCallsOfStores) {
  const Hooked hooked;
  StoreServer server;
  Store tcp = Store::connect("127.0.0.1", server.port());
  uint16_t unused = 0;
  {
    const StoreServer ended;
    unused = ended.port();
  }
  expect_interrupted("the connection to a store", [&] { Store::connect("127.0.0.1", unused); });
  expect_interrupted("get of a TCP store", [&] { tcp.get("missing"); });
  Store memory = Store::inproc();
  expect_interrupted("get of a store in memory", [&] { memory.get("missing"); });
  tcp.set("there", "1");
  EXPECT_EQ(tcp.get("there"), "1") << "the connection is of use afterwards";
}

// Threads of the core never call the hook: executors, watchdogs, store servers.
TEST(Interrupt, IsCalledOnTheBlockedThread) {
  const Hooked hooked;
  for (const std::string& backend : built_backends()) {
    others_asked = 0;
    BarrierLeftByAll barrier(2);
    const Store store = Store::inproc();
    on_ranks(2, [&backend, &barrier, &store](int rank) {
      is_rank = true;  // before the start of the group, which may block, too
      ProcessGroup group = ProcessGroup::create(group_options(backend, store, rank, 2));
      barrier(group);
      std::vector<int> value(1000, 1);
      std::vector<int> sum(1000);
      // Rank 1 blocks in a scan, which the core performs on its serial executor, until the hook has been called.
      if (rank == 0) {
        ranks_asked = 0;
        EXPECT_TRUE(eventually([] { return ranks_asked > 0; }));
      }
      group.scan(value, sum, ReduceOp::kSum, {.async_op = true}).wait();
      group.barrier();
    });
    EXPECT_GT(ranks_asked, 0) << backend;
    EXPECT_EQ(others_asked, 0) << backend;
  }
}

}  // namespace
}  // namespace backplane::test
