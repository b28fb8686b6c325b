// SPDX-License-Identifier: Apache-2.0
//
// A callee learns that its caller no longer waits, even if messages are lost or reordered.
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

std::atomic<int> unheard = 0;
std::atomic<int> taken = 0;
std::atomic<bool> said = false;
std::atomic<bool> may_go = false;

[[maybe_unused]] const bool cancels_registered = [] {
  rpc::register_function("listen", [] {
    const auto end = steady_clock::now() + seconds(20);
    while (!rpc::cancelled() && unheard == 0) {
      if (steady_clock::now() > end) ++unheard;
      std::this_thread::yield();
    }
  });
  rpc::register_function("hear", [] {
    const auto end = steady_clock::now() + seconds(20);
    for (bool was_last = false; !rpc::cancelled();) {
      if (was_last || steady_clock::now() > end) {
        ++unheard;
        break;
      }
      was_last = said;  // what was said before that has been heard
      std::this_thread::yield();
    }
  });
  rpc::register_function("stay", [] {
    while (!may_go && !rpc::cancelled()) std::this_thread::yield();
  });
  rpc::register_inline_function("take", [](const rpc::Array<uint8_t>&) { ++taken; });
  rpc::register_inline_function("leave", [](const rpc::Array<uint8_t>&) {});
  rpc::register_inline_function("say", [] { said = true; });
  return true;
}();

// A call that is cancelled at once may not have been sent yet.
void cancel_at_once(const std::string& way) {
  unheard = 0;
  in_world(way, 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    std::vector<rpc::Future<void>> calls;
    for (int i = 0; i < 200; ++i) {
      calls.push_back(worker.rpc_async<void>({"worker1", kNoTimeout}, "listen"));
      calls.back().cancel();
    }
    for (const auto& call : calls) EXPECT_EQ(failure_of([&call] { call.wait(); }), Status::kCancelled);
  });
  EXPECT_EQ(unheard, 0);
}

class CancelsTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, CancelsTest, testing::ValuesIn(rpc_ways()),
                         [](const auto& info) { return info.param; });

TEST_P(CancelsTest, AreHeardHoweverSoonTheyCome) { cancel_at_once(GetParam()); }

// A call's own timeout counts, of which 0 is none; without one, it is the worker's.
TEST(RpcTimeoutsTest, AreTheWorkersForCallsThatNameNone) {
  may_go = false;
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    if (rank == 0) options.rpc_timeout = std::chrono::milliseconds(50);
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    if (rank == 0) {
      const auto patient = worker.rpc_async<void>({1, kNoTimeout}, "stay");
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync<void>(1, "stay"); }), Status::kTimeout);
      EXPECT_FALSE(patient.done());  // which began before
      may_go = true;
      patient.wait();
    }
    worker.shutdown(true, seconds(60));
  });
}

#ifdef BACKPLANE_TEST_chaos
TEST(RpcCancelsTest, AreHeardIfTheyOvertakeTheirCalls) {
  const ScopedVariable layers("BACKPLANE_LAYERS", "chaos?rules=send tag 1 chance 0.2: reorder 20ms..50ms&seed=1");
  cancel_at_once("inproc");
}

// The buffers of the calls are on their way for a while.
TEST(RpcCancelsTest, OvertakeLargeMessages) {
  constexpr std::chrono::milliseconds kWay(200);
  std::string rules;  // for the first messages of rank 0, of which these are
  for (uint64_t number = 1; number <= 8; ++number) {
    const uint64_t tag = (uint64_t{1} << 48) + number * 4000 + 1;
    rules.append("rank 0 send tag ").append(std::to_string(tag)).append(": reorder 200ms;");
  }
  const ScopedVariable layers("BACKPLANE_LAYERS", "chaos?rules=" + rules);
  unheard = 0;
  taken = 0;
  said = false;
  in_world("inproc", 2, [kWay](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const auto listens = worker.rpc_async<void>(1, "hear");
    const auto begun = steady_clock::now();
    const rpc::Array<uint8_t> bytes(std::vector<uint8_t>(1'000'000));
    const auto large = worker.rpc_async<void>(1, "take", bytes);
    large.cancel();
    listens.cancel();
    worker.rpc_sync<void>(1, "say");
    const bool was_late = steady_clock::now() - begun >= kWay;  // the call may have come before its cancel
    worker.rpc_sync<void>(1, "leave", bytes);                   // has come after it
    EXPECT_TRUE(was_late || taken == 0);
  });
  EXPECT_EQ(unheard, 0);
}
#endif

}  // namespace
}  // namespace backplane::test
