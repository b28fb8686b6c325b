// SPDX-License-Identifier: Apache-2.0
//
// Concurrent waits for one call.
#include <future>
#include <new>
#include <thread>
#include <vector>

#include "rpc/workers.hpp"

namespace {

thread_local bool memory_is_short = false;

}  // namespace

// Makes nothrow allocations fail on request.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (memory_is_short) return nullptr;
  try {
    return ::operator new(size);
  } catch (...) {
    return nullptr;
  }
}

namespace backplane::test {
namespace {

std::promise<void>* release = nullptr;

[[maybe_unused]] const bool future_registered = [] {
  rpc::register_function("held", [] {
    release->get_future().wait();
    return 7;
  });
  return true;
}();

// Waits with and without limits, in any order.
TEST(RpcFutureTest, ManyThreadsWaitForOneCall) {
  std::promise<void> go;
  release = &go;
  in_world("inproc", 2, [&go](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const auto call = worker.rpc_async<int>("worker1", "held");
    std::vector<std::thread> waiting;
    std::vector<std::thread> giving_up;
    for (int i = 0; i < 4; ++i) {
      waiting.emplace_back([&call] { EXPECT_EQ(call.wait(), 7); });
      waiting.emplace_back([&call] { EXPECT_TRUE(call.wait_for(std::chrono::seconds(60))); });
      waiting.emplace_back([&call] { EXPECT_TRUE(call.wait_for(Timeout::max())); });
      giving_up.emplace_back([&call, i] { EXPECT_FALSE(call.wait_for(std::chrono::milliseconds(i))); });
    }
    for (std::thread& each : giving_up) each.join();
    std::thread beside([&call] {  // waits until it is done, and again
      while (!call.wait_for(std::chrono::microseconds(10))) {
      }
      EXPECT_TRUE(call.wait_for(Timeout::zero()));
    });
    go.set_value();
    for (std::thread& each : waiting) each.join();
    beside.join();
    EXPECT_EQ(call.wait(), 7);
  });
}

TEST(RpcFutureTest, CallsEndWithoutMemoryForTheirError) {
  rpc::detail::FutureState<int> state(nullptr);
  std::thread waiting([&state] { EXPECT_TRUE(state.wait(std::chrono::seconds(60))) << "it was not woken"; });
  bp_error err;
  bp_error_init(&err);
  bp_error_set(&err, BP_TIMEOUT, 0, 1, "it took too long");
  memory_is_short = true;
  state.fail(err);
  memory_is_short = false;
  waiting.join();
  EXPECT_EQ(failure_of([&state] { state.get(); }), Status::kResource);
}

}  // namespace
}  // namespace backplane::test
