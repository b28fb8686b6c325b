// SPDX-License-Identifier: Apache-2.0
//
// Whoever serves a call hears that nobody waits for it any more, whatever becomes of the messages between.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "rpc/workers.hpp"
#include "support/environment.hpp"

namespace backplane::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

std::atomic<int> unheard = 0;

[[maybe_unused]] const bool registered = [] {
  rpc::register_function("listen", [] {
    const auto end = steady_clock::now() + seconds(20);
    while (!rpc::cancelled() && unheard == 0) {
      if (steady_clock::now() > end) ++unheard;
      std::this_thread::yield();
    }
  });
  return true;
}();

// A call that is cancelled at once may not have been sent yet.
void cancel_at_once(const std::string& way) {
  unheard = 0;
  in_world(way, 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    std::vector<rpc::Future<void>> calls;
    for (int i = 0; i < 200; ++i) {
      calls.push_back(worker.rpc_async<void>({"worker1", Timeout::zero()}, "listen"));
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

#ifdef BACKPLANE_TEST_CHAOS
TEST(RpcCancelsTest, AreHeardIfTheyOvertakeTheirCalls) {
  const ScopedVariable layers("BACKPLANE_LAYERS", "chaos?rules=send tag 1 chance 0.2: reorder 20ms..50ms&seed=1");
  cancel_at_once("inproc");
}
#endif

}  // namespace
}  // namespace backplane::test
