// SPDX-License-Identifier: Apache-2.0
//
// Cancellations reach the callee, even if messages are lost or reordered.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "rpc/workers.hpp"
#include "support/environment.hpp"

namespace backplane::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

std::atomic<int> missed = 0;
std::atomic<int> received = 0;
std::atomic<bool> marked = false;
std::atomic<bool> released = false;

[[maybe_unused]] const bool cancels_registered = [] {
  rpc::register_function("wait for cancel", [] {
    const auto end = steady_clock::now() + seconds(20);
    while (!rpc::cancelled() && missed == 0) {
      if (steady_clock::now() > end) ++missed;
      std::this_thread::yield();
    }
  });
  rpc::register_function("wait for cancel before the mark", [] {
    const auto end = steady_clock::now() + seconds(20);
    for (bool was_last = false; !rpc::cancelled();) {
      if (was_last || steady_clock::now() > end) {
        ++missed;
        break;
      }
      was_last = marked;  // earlier cancellations have arrived
      std::this_thread::yield();
    }
  });
  rpc::register_function("wait for release", [] {
    while (!released && !rpc::cancelled()) std::this_thread::yield();
  });
  rpc::register_inline_function("count bytes", [](const rpc::Array<uint8_t>&) { ++received; });
  rpc::register_inline_function("do nothing", [](const rpc::Array<uint8_t>&) {});
  rpc::register_inline_function("set the mark", [] { marked = true; });
  return true;
}();

// A call that is cancelled immediately may not have been sent yet.
void cancel_immediately(const std::string& transport) {
  missed = 0;
  in_world(transport, 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    std::vector<rpc::Future<void>> calls;
    for (int i = 0; i < 200; ++i) {
      calls.push_back(worker.rpc_async<void>({"worker1", kNoTimeout}, "wait for cancel"));
      calls.back().cancel();
    }
    for (const auto& call : calls) EXPECT_EQ(failure_of([&call] { call.wait(); }), Status::kCancelled);
  });
  EXPECT_EQ(missed, 0);
}

class CancelsTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, CancelsTest, testing::ValuesIn(rpc_transports()),
                         [](const auto& info) { return info.param; });

TEST_P(CancelsTest, ReachCallsThatAreCancelledImmediately) { cancel_immediately(GetParam()); }

// A call's own timeout takes precedence over the worker's; kNoTimeout means none.
TEST(RpcTimeoutsTest, DefaultToTheTimeoutOfTheWorker) {
  released = false;
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    if (rank == 0) options.rpc_timeout = std::chrono::milliseconds(50);
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    if (rank == 0) {
      const auto unlimited = worker.rpc_async<void>({1, kNoTimeout}, "wait for release");
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync<void>(1, "wait for release"); }), Status::kTimeout);
      EXPECT_FALSE(unlimited.done());  // began before the call that timed out
      released = true;
      unlimited.wait();
    }
    worker.shutdown(true, seconds(60));
  });
}

#ifdef BACKPLANE_TEST_chaos
TEST(RpcCancelsTest, ReachCallsThatTheyOvertake) {
  const ScopedVariable layers("BACKPLANE_LAYERS", "chaos?rules=send tag 1 chance 0.2: reorder 20ms..50ms&seed=1");
  cancel_immediately("inproc");
}

// The buffers of the calls are delayed.
TEST(RpcCancelsTest, OvertakeLargeMessages) {
  constexpr std::chrono::milliseconds kDelay(200);
  std::string rules;  // for the first messages of rank 0, which include these calls
  for (uint64_t number = 1; number <= 8; ++number) {
    const uint64_t tag = (uint64_t{1} << 48) + number * 4000 + 1;
    rules.append("rank 0 send tag ").append(std::to_string(tag)).append(": reorder 200ms;");
  }
  const ScopedVariable layers("BACKPLANE_LAYERS", "chaos?rules=" + rules);
  missed = 0;
  received = 0;
  marked = false;
  in_world("inproc", 2, [kDelay](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const auto small = worker.rpc_async<void>(1, "wait for cancel before the mark");
    const auto begun = steady_clock::now();
    const rpc::Array<uint8_t> bytes(std::vector<uint8_t>(1'000'000));
    const auto large = worker.rpc_async<void>(1, "count bytes", bytes);
    large.cancel();
    small.cancel();
    worker.rpc_sync<void>(1, "set the mark");
    const bool was_late = steady_clock::now() - begun >= kDelay;  // the call may have arrived before its cancellation
    worker.rpc_sync<void>(1, "do nothing", bytes);                // arrives after it
    EXPECT_TRUE(was_late || received == 0);
  });
  EXPECT_EQ(missed, 0);
}
#endif

}  // namespace
}  // namespace backplane::test
