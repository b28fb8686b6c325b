// SPDX-License-Identifier: Apache-2.0
//
// Calls that end early: timeout, cancellation, interruption.
#include "rpc/gate.hpp"
#include "rpc/workers.hpp"
#include "support/interruption.hpp"

namespace backplane::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Stage {
  Gate begun;
  Gate cancelled;
  Gate closed;  // never opened
};
std::shared_ptr<Stage> stage;

[[maybe_unused]] const bool timeouts_registered = [] {
  rpc::register_function("run until cancelled", [] {
    const auto own = stage;
    own->begun.open();
    for (int i = 0; i < 3000 && !rpc::cancelled(); ++i) own->closed.wait(milliseconds(10));
    if (rpc::cancelled()) own->cancelled.open();
  });
  rpc::register_function("return when opened", [] {
    stage->closed.wait();
    return 7;
  });
  return true;
}();

class RpcCancellationTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcCancellationTest, testing::ValuesIn(rpc_transports()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcCancellationTest, TimeoutsCancelTheFunction) {
  stage = std::make_shared<Stage>();
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    // Repeats until a function has started before its timeout: only a running function can be cancelled.
    milliseconds timeout(50);
    do {
      std::string text;
      const auto call = worker.rpc_async({"worker1", timeout}, "run until cancelled");
      EXPECT_EQ(failure_of([&call] { call.wait(); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("'run until cancelled' on worker 'worker1' (rank 1)"), std::string::npos) << text;
      EXPECT_EQ(text.find("within 0.05 s") != std::string::npos, timeout == milliseconds(50)) << text;
      timeout *= 4;
    } while (!stage->begun.wait(milliseconds(0)) && timeout < seconds(60));
    EXPECT_TRUE(stage->cancelled.wait());
  });
}

TEST_P(RpcCancellationTest, InterruptionsCancelTheFunction) {
  const Hooked hooked;
  stage = std::make_shared<Stage>();
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const auto call = worker.rpc_async("worker1", "run until cancelled");
    EXPECT_TRUE(stage->begun.wait());
    expect_interrupted("wait", [&call] { call.wait(); });
    EXPECT_TRUE(stage->cancelled.wait());
    EXPECT_EQ(failure_of([&call] { call.wait(); }), Status::kCancelled);
    const auto another = worker.rpc_async("worker1", "run until cancelled");
    expect_interrupted("wait_for", [&another] { another.wait_for(seconds(60)); });
    const rpc::RRef<int> own = worker.remote<int>("worker0", "return when opened");
    expect_interrupted("local", [&own] { own.local_value(); });
    stage->closed.open();
    EXPECT_EQ(own.to_here(), 7) << "the value is still created";
  });
}

TEST_P(RpcCancellationTest, InterruptedShutdownLeavesAtOnce) {
  const Hooked hooked;
  stage = std::make_shared<Stage>();
  const Store store = Store::inproc();
  Gate left;
  on_ranks(2, [&](int rank) {
    const rpc::Worker worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2));
    if (rank == 1) {
      EXPECT_TRUE(left.wait());
      worker.shutdown(false);
      return;
    }
    expect_interrupted("shutdown", [&worker] { worker.shutdown(true, seconds(60)); });
    left.open();
    EXPECT_EQ(failure_of([&worker] { worker.rpc_sync<void>("worker1", "run until cancelled"); }), Status::kCancelled);
  });
}

TEST_P(RpcCancellationTest, CancelsReachTheFunction) {
  stage = std::make_shared<Stage>();
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const auto call = worker.rpc_async("worker1", "run until cancelled");
    EXPECT_TRUE(stage->begun.wait());
    call.cancel();
    std::string text;
    EXPECT_EQ(failure_of([&call] { call.wait(); }, &text), Status::kCancelled);
    try {
      call.wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.group(), "worker0");
    }
    EXPECT_NE(text.find("'run until cancelled' on worker 'worker1' (rank 1)"), std::string::npos) << text;
    EXPECT_TRUE(stage->cancelled.wait());
  });
}

}  // namespace
}  // namespace backplane::test
