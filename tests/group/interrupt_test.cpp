// SPDX-License-Identifier: Apache-2.0
//
// The interruption hook ends whatever blocks, within a fraction of a second, and leaves no buffer in use.
#include "support/eventually.hpp"
#include "support/groups.hpp"
#include "support/interruption.hpp"

namespace backplane::test {
namespace {

using InterruptTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, InterruptTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2)), backend_test_name);

TEST_P(InterruptTest, EndsMessagesAndLeavesTheGroupWhole) {
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
  expect_interrupted("get of a TCP store", [&] { tcp.get("missing"); });
  Store memory = Store::inproc();
  expect_interrupted("get of a store in memory", [&] { memory.get("missing"); });
  tcp.set("there", "1");
  EXPECT_EQ(tcp.get("there"), "1") << "the connection is of use afterwards";
}

// The core's own threads ask nobody: not those that perform collectives, tell of ends or serve stores.
TEST(Interrupt, AsksOnTheThreadThatBlocks) {
  const Hooked hooked;
  for (const std::string& backend : built_backends()) {
    ranks_asked = 0;
    others_asked = 0;
    in_group(backend, 2, [](ProcessGroup& group) {
      is_rank = true;
      std::vector<int> value(1000, 1);
      std::vector<int> sum(1000);
      // Rank 1 blocks in a scan, which the core performs on a thread of its own, until it has been asked.
      if (group.rank() == 0) {
        EXPECT_TRUE(eventually([] { return ranks_asked > 0; }));
      }
      group.scan(value, sum, ReduceOp::kSum, {.async_op = true}).wait();
    });
    EXPECT_GT(ranks_asked, 0) << backend;
    EXPECT_EQ(others_asked, 0) << backend;
  }
}

}  // namespace
}  // namespace backplane::test
