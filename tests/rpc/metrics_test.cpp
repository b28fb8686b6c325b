// SPDX-License-Identifier: Apache-2.0
//
// Metrics of a worker: the names of torch, and exact counts.
#include <atomic>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

using Json = nlohmann::json;

std::atomic<bool> open = false;  // ends "until open"

[[maybe_unused]] const bool metrics_registered = [] {
  rpc::register_function("counted", [](int value) { return value; });
  rpc::register_function("counted as failed", [] { throw std::runtime_error("intended"); });
  rpc::register_function("wait until cancelled", [] {
    while (!rpc::cancelled()) std::this_thread::yield();
  });
  rpc::register_function("until open", [] {
    while (!open) std::this_thread::yield();
  });
  rpc::register_function("wait through", [] { rpc::rpc_sync(1 - rpc::current().rank(), "until open"); });
  return true;
}();

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

// Waits until the metrics fulfil a condition.
Json counts_once(const rpc::Worker& worker, const std::function<bool(const Json&)>& is_so) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    Json counts = Json::parse(worker.metrics());
    if (is_so(counts) || std::chrono::steady_clock::now() > give_up) return counts;
    std::this_thread::yield();
  }
}

void expect_keys(const Json& counts) {
  EXPECT_EQ(keys_of(counts), (std::set<std::string>{
                                 "agent.num_pending_requests", "agent.client_active_calls", "agent.server_active_calls",
                                 "agent.server_active_async_calls", "agent.thread_pool_size", "agent.num_idle_threads",
                                 "agent.num_queued_tasks", "num_owner_rrefs", "num_forks", "num_user_rrefs",
                                 "num_pending_users", "num_pending_futures", "peers"}));
  EXPECT_EQ(keys_of(counts["peers"]), (std::set<std::string>{"worker0", "worker1"}));
  for (const Json& peer : counts["peers"]) {
    EXPECT_EQ(keys_of(peer), (std::set<std::string>{"calls_sent", "calls_received", "bytes_sent", "bytes_received",
                                                    "errors", "timeouts", "round_trips", "run_times"}));
  }
}

TEST(RpcMetricsTest, CountEndedCalls) {
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    std::optional<rpc::RRef<int>> ref;
    if (worker.rank() == 0) {
      for (int i = 0; i < 5; ++i) worker.rpc_sync<int>("worker1", "counted", i);
      failure_of([&worker] { worker.rpc_sync("worker1", "counted as failed"); });
      failure_of([&worker] { worker.rpc_sync({"worker1", std::chrono::seconds(2)}, "wait until cancelled"); });
      ref = worker.remote<int>("worker1", "counted", 7);
      EXPECT_EQ(ref->to_here(), 7);
      const Json counts = Json::parse(worker.metrics());
      expect_keys(counts);
      EXPECT_EQ(counts["agent.num_pending_requests"], 0);
      EXPECT_EQ(counts["num_owner_rrefs"], 0);
      EXPECT_EQ(counts["num_user_rrefs"], 1);
      EXPECT_EQ(counts["num_pending_users"], 0);
      EXPECT_EQ(counts["num_pending_futures"], 0);
      const Json& peer = counts["peers"]["worker1"];
      EXPECT_EQ(peer["calls_sent"], 9);
      EXPECT_EQ(peer["calls_received"], 0);
      EXPECT_EQ(peer["errors"], 2);
      EXPECT_EQ(peer["timeouts"], 1);
      EXPECT_EQ(peer["round_trips"]["count"], 7);
    }
    worker.all_gather(0);
    if (worker.rank() == 1) {
      const Json counts = counts_once(worker, [](const Json& now) {
        return now["agent.server_active_calls"] == 0 && now["peers"]["worker0"]["run_times"]["count"] == 8;
      });
      expect_keys(counts);
      EXPECT_EQ(counts["num_owner_rrefs"], 1);
      EXPECT_EQ(counts["num_forks"], 1);
      EXPECT_EQ(counts["num_user_rrefs"], 0);
      const Json& peer = counts["peers"]["worker0"];
      EXPECT_EQ(peer["calls_sent"], 0);
      EXPECT_EQ(peer["calls_received"], 9);
      EXPECT_EQ(peer["errors"], 0);
      EXPECT_EQ(peer["run_times"]["count"], 8);
    }
    worker.all_gather(0);
  });
}

TEST(RpcMetricsTest, CountRunningCalls) {
  open = false;
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) {
      worker.all_gather(0);
      const Json counts =
          counts_once(worker, [](const Json& now) { return now["agent.server_active_async_calls"] == 1; });
      EXPECT_EQ(counts["agent.server_active_async_calls"], 1);
      EXPECT_EQ(counts["agent.server_active_calls"], 1);
      EXPECT_EQ(counts["agent.client_active_calls"], 1);
      open = true;
      return;
    }
    const auto call = worker.rpc_async("worker1", "wait through");
    worker.all_gather(0);
    call.wait();
    const Json counts = Json::parse(worker.metrics());
    EXPECT_EQ(counts["agent.client_active_calls"], 0);
    EXPECT_EQ(counts["agent.server_active_calls"], 0);
  });
}

}  // namespace
}  // namespace backplane::test
