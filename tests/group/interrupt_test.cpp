// SPDX-License-Identifier: Apache-2.0
//
// The interruption hook ends blocking calls within a fraction of a second and leaves no buffer in use.
#include <algorithm>
#include <atomic>
#include <latch>
#include <string>
#include <vector>

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

// Rank 1 comes once rank 0 has asked.
TEST_P(InterruptTest, LetsAnOperationGoOn) {
  const Hooked hooked;
  in_group([](ProcessGroup& group) {
    is_rank = group.rank() == 0;
    std::vector<int> value(10, group.rank());
    group.barrier();
    if (group.rank() == 0) {
      ranks_asked = 0;
      group.send(value, 1);
      group.recv(value, 1);
    } else {
      group.recv(value, 0);
      EXPECT_TRUE(eventually([] { return ranks_asked > 0; }));
      group.send(value, 0);
      ranks_asked = 0;
      EXPECT_TRUE(eventually([] { return ranks_asked > 0; }));
    }
    group.all_reduce(value);
    EXPECT_EQ(value.back(), 0);
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

struct Nested {
  std::atomic<bp_group*> group = nullptr;
  std::atomic<int> calls = 0;
  bp_error err;
};

// shm performs a collective on the thread of the call, which the hook then runs on: another one could never begin.
TEST(Interrupt, ACollectiveInsideTheHookIsRefused) {
  const std::vector<std::string> backends = built_backends();
  if (std::find(backends.begin(), backends.end(), "shm") == backends.end()) GTEST_SKIP() << "shm is not built";
  Nested nested;
  bp_error_init(&nested.err);
  const auto start_barrier = [](void* ctx) -> int32_t {
    auto& own = *static_cast<Nested*>(ctx);
    bp_group* const group = is_rank ? own.group.load() : nullptr;
    if (group == nullptr || own.calls.fetch_add(1) > 0) return 0;
    bp_op op = {};
    op.struct_size = sizeof op;
    op.kind = BP_BARRIER;
    op.timeout_ns = BP_NO_TIMEOUT;
    EXPECT_EQ(bp_group_run(group, &op, &own.err), BP_INVALID) << own.err.text;
    return 0;
  };
  const Store store = Store::inproc();
  BarrierLeftByAll barrier(2);
  std::latch ended(1);  // a rank that leaves would end the barrier of the other
  bp_set_interrupt_hook(start_barrier, &nested);
  on_ranks(2, [&store, &nested, &barrier, &ended](int rank) {
    is_rank = rank == 0;
    ProcessGroup group = ProcessGroup::create(group_options("shm", store, rank, 2));
    barrier(group);
    if (rank == 0) {
      nested.group = group.get();
      EXPECT_EQ(failure_of([&group] { group.barrier(); }), Status::kInvalid);
      nested.group = nullptr;
      ended.count_down();
    } else {
      EXPECT_TRUE(eventually([&ended] { return ended.try_wait(); }));
    }
  });
  bp_set_interrupt_hook(nullptr, nullptr);
  EXPECT_NE(std::string(nested.err.text).find("cannot start a collective"), std::string::npos) << nested.err.text;
}

}  // namespace
}  // namespace backplane::test
