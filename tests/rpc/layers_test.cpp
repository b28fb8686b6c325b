// SPDX-License-Identifier: Apache-2.0
//
// RPC calls in the layer `trace`.
#include <chrono>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "layers/prometheus.hpp"
#include "layers/support.hpp"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

[[maybe_unused]] const bool layers_registered = [] {
  rpc::register_function("traced", [](int a) { return a; });
  rpc::register_function("traced twice", [](std::vector<double> a) {
    a.resize(2 * a.size());
    return a;
  });
  rpc::register_inline_function("traced short", [] {});
  rpc::register_function("traced hang", [] {
    while (!rpc::cancelled()) std::this_thread::yield();
  });
  rpc::register_function("traced failure", [] { throw std::runtime_error("on purpose"); });
  return true;
}();

// The number of events with this name and these fields.
int count(const std::string& text, const std::string& name, const std::string& fields) {
  int found = 0;
  for (size_t at = 0; (at = text.find("\"name\":\"" + name + "\",\"cat\":\"call\"", at)) != std::string::npos; ++at) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    if (contains(line, fields)) ++found;
  }
  return found;
}

// The arguments of the events of calls to or from `peer`, by call number.
std::map<uint64_t, nlohmann::json> calls_of(const std::string& trace, const std::string& direction, int peer) {
  std::map<uint64_t, nlohmann::json> calls;
  const auto parsed = nlohmann::json::parse(trace);
  for (const auto& event : parsed["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] != "call") continue;
    const nlohmann::json& args = event["args"];
    if (args["direction"] == direction && args["peer"] == peer) calls[args["number"]] = args;
  }
  return calls;
}

// Both sides must record calls alike. The calls include "traced twice" with 1000 doubles and a failure.
void expect_alike(const std::map<uint64_t, nlohmann::json>& made, const std::map<uint64_t, nlohmann::json>& served,
                  int large_calls = 1) {
  int large = 0;
  for (const auto& [number, call] : served) {
    ASSERT_EQ(made.count(number), 1U) << number;
    for (const char* key : {"status", "request_bytes", "answer_bytes"}) EXPECT_EQ(call[key], made.at(number)[key]);
    if (call["status"] != "ok") {
      EXPECT_EQ(call["answer_bytes"], 0);
    }
    if (call["request_bytes"] < 8000) continue;
    ++large;
    EXPECT_GE(call["answer_bytes"], 16000);
    EXPECT_LT(call["answer_bytes"], 16200);
    EXPECT_LT(call["request_bytes"], 8200);
  }
  EXPECT_EQ(large, large_calls);
}

// Checks the metrics of worker 0 of two. `made`: its calls to worker 1.
void expect_metrics(const Exposition& metrics, const std::map<uint64_t, nlohmann::json>& made) {
  const std::string whose = "{group=\"rpc\",rank=\"0\",";
  const auto of = [&whose](const std::string& name, const std::string& labels) {
    return "backplane_" + name + whose + labels + "}";
  };
  EXPECT_EQ(metrics[of("call_latency_seconds_count", R"(function="traced",side="caller")")], 5);
  EXPECT_EQ(metrics[of("call_latency_seconds_count", R"(function="traced",side="callee")")], 1);
  EXPECT_EQ(metrics[of("call_latency_seconds_bucket", R"(function="traced",side="callee",le="+Inf")")], 1);
  EXPECT_GE(metrics[of("call_latency_seconds_bucket", R"(function="traced",side="caller",le="0.000001023")")], 0);
  EXPECT_GT(metrics[of("call_latency_seconds_sum", R"(function="traced",side="caller")")], 0);
  EXPECT_EQ(metrics[of("call_failures_total", R"(function="traced failure",side="caller",status="internal")")], 1);
  EXPECT_EQ(metrics[of("call_latency_seconds_count", R"x(function="(fetch)",side="caller")x")], 1);
  EXPECT_GE(metrics[of("call_bytes_total", R"(function="traced twice",side="caller")")], 24000);
  EXPECT_GE(metrics[of("operation_bytes_total", R"(op="call")")], 24000);
  EXPECT_EQ(metrics.type("backplane_call_latency_seconds"), "histogram");
  for (const char* name :
       {"agent_num_pending_requests", "agent_client_active_calls", "agent_server_active_calls",
        "agent_server_active_async_calls", "agent_thread_pool_size", "agent_num_idle_threads", "agent_num_queued_tasks",
        "num_owner_rrefs", "num_forks", "num_user_rrefs", "num_pending_users", "num_pending_futures"}) {
    EXPECT_GE(metrics[of(std::string("rpc_") + name, R"(worker="worker0")")], 0) << name << metrics.text();
    EXPECT_EQ(metrics.type(std::string("backplane_rpc_") + name), "gauge");
  }
  for (const char* name : {"calls_sent", "calls_received", "bytes_sent", "bytes_received", "errors", "timeouts"}) {
    const std::string total = std::string("rpc_") + name + "_total";
    EXPECT_GE(metrics[of(total, R"(worker="worker0",peer="worker1")")], 0) << name << metrics.text();
    EXPECT_GE(metrics[of(total, R"(worker="worker0",peer="worker0")")], 0) << name;
    EXPECT_EQ(metrics.type("backplane_" + total), "counter");
  }
  const std::string peer = R"(worker="worker0",peer="worker1")";
  EXPECT_GE(metrics[of("rpc_calls_sent_total", peer)], static_cast<double>(made.size()));
  EXPECT_EQ(metrics[of("rpc_errors_total", peer)], 1);
  EXPECT_EQ(metrics[of("rpc_timeouts_total", peer)], 0);
  EXPECT_GE(metrics[of("rpc_bytes_sent_total", peer)], 8000);
  EXPECT_GE(metrics[of("rpc_bytes_received_total", peer)], 16000);
}

class RpcLayersTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcLayersTest, testing::ValuesIn([] {
                           std::vector<std::string> transports = agents_with_connections();
                           transports.emplace_back("inproc");
                           return transports;
                         }()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcLayersTest, TraceRecordsCallsOfBothSides) {
  const ScopedDirectory directory;
  const std::string base = directory.path().string();
  {
    const ScopedVariable layers("BACKPLANE_LAYERS", "trace?interval=0&file=" + base + "/%g-%r.prom&chrome=" + base +
                                                        "/%g-%r.json,chaos?rules=recv once after 1000000: drop");
    in_world(GetParam(), 2, [](const rpc::Worker& worker) {
      if (worker.rank() != 0) return;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(worker.rpc_sync<int>(1, "traced", i), i);
      worker.rpc_sync(1, "traced short");
      EXPECT_EQ(worker.rpc_sync<int>(0, "traced", 7), 7);  // to itself
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync(1, "traced failure"); }), Status::kInternal);
      EXPECT_EQ(worker.remote<int>(1, "traced", 4).to_here(), 4);
      EXPECT_EQ(worker.rpc_sync<std::vector<double>>(1, "traced twice", std::vector<double>(1000)).size(), 2000U);
    });
  }
  const std::string caller = content(directory.path() / "rpc-0.json");
  EXPECT_EQ(count(caller, "traced", "\"direction\":\"out\",\"peer\":1,\"status\":\"ok\""), 4) << caller;
  EXPECT_EQ(count(caller, "traced", "\"direction\":\"out\",\"peer\":0,\"status\":\"ok\""), 1);
  EXPECT_EQ(count(caller, "traced", "\"direction\":\"in\",\"peer\":0,\"status\":\"ok\""), 1);
  EXPECT_EQ(count(caller, "traced short", "\"direction\":\"out\",\"peer\":1"), 1);
  EXPECT_EQ(count(caller, "traced failure", "\"direction\":\"out\",\"peer\":1,\"status\":\"internal\""), 1);
  EXPECT_EQ(count(caller, "(fetch)", "\"direction\":\"out\",\"peer\":1,\"status\":\"ok\""), 1);
  const std::string callee = content(directory.path() / "rpc-1.json");
  EXPECT_EQ(count(callee, "traced", "\"direction\":\"in\",\"peer\":0,\"status\":\"ok\""), 4) << callee;
  EXPECT_EQ(count(callee, "traced short", "\"direction\":\"in\",\"peer\":0"), 1);
  EXPECT_EQ(count(callee, "traced failure", "\"direction\":\"in\",\"peer\":0,\"status\":\"internal\""), 1);
  // Both sides use the same number.
  EXPECT_EQ(count(caller, "traced", "\"number\":1,\"direction\":\"out\",\"peer\":1"), 1);
  EXPECT_EQ(count(callee, "traced", "\"number\":1,\"direction\":\"in\",\"peer\":0"), 1);
  const auto made = calls_of(caller, "out", 1);
  expect_alike(made, calls_of(callee, "in", 0));
  expect_alike(calls_of(caller, "out", 0), calls_of(caller, "in", 0), 0);
  EXPECT_EQ(nlohmann::json::parse(caller)["otherData"]["metrics"]["errors worker1"], 1);
  const Exposition metrics(content(directory.path() / "rpc-0.prom"));
  expect_metrics(metrics, made);
  EXPECT_EQ(metrics["backplane_operation_seconds_count{group=\"rpc\",rank=\"0\",op=\"call\"}"], 9);
  EXPECT_EQ(metrics["backplane_operation_failures_total{group=\"rpc\",rank=\"0\",op=\"call\",status=\"internal\"}"], 1);
  const Exposition served(content(directory.path() / "rpc-1.prom"));
  EXPECT_GE(served["backplane_operation_seconds{group=\"rpc\",rank=\"1\",op=\"served_call\",quantile=\"0.99\"}"], 0);
}

TEST_P(RpcLayersTest, TraceRecordsCallsCancelledByShutdown) {
  const ScopedDirectory directory;
  const ScopedVariable layers("BACKPLANE_LAYERS", "trace?chrome=" + directory.path().string() + "/%g-%r.json");
  const Store store = Store::inproc();
  std::promise<void> left;
  on_ranks(2, [&store, &left](int rank) {
    const rpc::Worker worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2));
    if (rank == 0) {
      const auto call = worker.rpc_async(1, "traced hang");
      worker.shutdown(false);
      EXPECT_EQ(failure_of([&call] { call.wait(); }), Status::kCancelled);
      left.set_value();
    } else {
      left.get_future().wait();
      worker.shutdown(false);
    }
  });
  const std::string caller = content(directory.path() / "rpc-0.json");
  const std::string fields = "\"number\":1,\"direction\":\"out\",\"peer\":1,\"status\":\"cancelled\"";
  EXPECT_EQ(count(caller, "traced hang", fields), 1) << caller;
}

TEST(RpcLayersTest, MetricsAreCurrent) {
  const ScopedDirectory directory;
  const ScopedVariable layers("BACKPLANE_LAYERS",
                              "trace?interval=1ms&file=" + directory.path().string() + "/%g-%r.prom");
  in_world("inproc", 2, [&directory](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const auto call = worker.rpc_async(1, "traced hang");
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const char* line = "backplane_rpc_agent_client_active_calls{group=\"rpc\",rank=\"0\",worker=\"worker0\"} 1\n";
    while (!contains(content(directory.path() / "rpc-0.prom"), line)) {
      if (std::chrono::steady_clock::now() > give_up) {
        ADD_FAILURE() << content(directory.path() / "rpc-0.prom");
        break;
      }
      std::this_thread::yield();
    }
    call.cancel();
    EXPECT_EQ(failure_of([&call] { call.wait(); }), Status::kCancelled);
  });
}

// Function names may have any bytes; long ones are truncated.
TEST(RpcLayersTest, TraceIsValidJsonForAnyFunctionName) {
  const ScopedDirectory directory;
  std::string euros;
  while (euros.size() < 201) euros += "\u20ac";
  const std::string replaced = "\uFFFD";
  {
    const ScopedVariable layers("BACKPLANE_LAYERS", "trace?chrome=" + directory.path().string() + "/%g-%r.json&file=" +
                                                        directory.path().string() + "/%g-%r.prom");
    in_world("inproc", 2, [&euros](const rpc::Worker& worker) {
      if (worker.rank() != 0) return;
      for (const std::string& name :
           {euros, std::string("\xff"), std::string("\xe2\x82"), std::string("a\xc0\x80\"")}) {
        EXPECT_EQ(failure_of([&worker, &name] { worker.rpc_sync(1, name); }), Status::kInvalid);
      }
    });
  }
  for (const char* file : {"rpc-0.json", "rpc-1.json"}) {
    const std::string trace = content(directory.path() / file);
    EXPECT_TRUE(nlohmann::json::accept(trace)) << trace;
    EXPECT_EQ(count(trace, euros.substr(0, 198) + replaced + replaced, "\"status\""), 1) << trace;
    EXPECT_EQ(count(trace, replaced, "\"status\""), 1);
    EXPECT_EQ(count(trace, "a" + replaced + replaced + "\\\"", "\"status\""), 1);
  }
  for (const char* file : {"rpc-0.prom", "rpc-1.prom"}) {
    const Exposition metrics(content(directory.path() / file));
    EXPECT_TRUE(contains(metrics.text(), "function=\"a" + replaced + replaced + "\\\"\",side=")) << metrics.text();
  }
}

}  // namespace
}  // namespace backplane::test
