// SPDX-License-Identifier: Apache-2.0
//
// What layers of the group in which the workers meet hear of calls.
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "layers/support.hpp"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

[[maybe_unused]] const bool registered = [] {
  rpc::register_function("traced", [](int a) { return a; });
  rpc::register_short_function("traced short", [] {});
  rpc::register_function("traced hang", [] {
    while (!rpc::cancelled()) std::this_thread::yield();
  });
  rpc::register_function("traced failure", [] { throw std::runtime_error("on purpose"); });
  return true;
}();

// The events with these words, in the file of a group and rank.
int count(const std::string& text, const std::string& name, const std::string& words) {
  int found = 0;
  for (size_t at = 0; (at = text.find("\"name\":\"" + name + "\",\"cat\":\"call\"", at)) != std::string::npos; ++at) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    if (contains(line, words)) ++found;
  }
  return found;
}

class RpcLayersTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcLayersTest, testing::ValuesIn([] {
                           std::vector<std::string> ways = own_agents();
                           ways.emplace_back("inproc");
                           return ways;
                         }()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcLayersTest, TheTraceHasCallsOfBothSides) {
  const ScopedDirectory directory;
  const std::string base = directory.path().string();
  {
    const ScopedVariable layers("BACKPLANE_LAYERS", "trace?interval=0&file=" + base + "/%g-%r.prom&chrome=" + base +
                                                        "/%g-%r.json,chaos?rules=recv once after 1000000: drop");
    in_world(GetParam(), 2, [](const rpc::Worker& worker) {
      if (worker.rank() != 0) return;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(worker.rpc_sync<int>(1, "traced", i), i);
      worker.rpc_sync(1, "traced short");
      EXPECT_EQ(worker.rpc_sync<int>(0, "traced", 7), 7);  // its own
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync(1, "traced failure"); }), Status::kInternal);
      EXPECT_EQ(worker.remote<int>(1, "traced", 4).to_here(), 4);
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
  // Both sides name a call alike.
  EXPECT_EQ(count(caller, "traced", "\"number\":1,\"direction\":\"out\",\"peer\":1"), 1);
  EXPECT_EQ(count(callee, "traced", "\"number\":1,\"direction\":\"in\",\"peer\":0"), 1);
  const std::string metrics = content(directory.path() / "rpc-0.prom");
  EXPECT_TRUE(contains(metrics, "operation_seconds_count{group=\"rpc\",rank=\"0\",op=\"call\"} 8\n")) << metrics;
  EXPECT_TRUE(
      contains(metrics, "operation_failures_total{group=\"rpc\",rank=\"0\",op=\"call\",status=\"internal\"} 1\n"));
  EXPECT_TRUE(contains(content(directory.path() / "rpc-1.prom"), "op=\"served_call\",quantile=\"0.99\"}"));
}

TEST_P(RpcLayersTest, TheTraceHasCallsThatLeavingEnds) {
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
  const std::string words = "\"number\":1,\"direction\":\"out\",\"peer\":1,\"status\":\"cancelled\"";
  EXPECT_EQ(count(caller, "traced hang", words), 1) << caller;
}

// Any bytes may come as the name of a function, and those that are too long are cut.
TEST(RpcLayersTest, TheTraceIsJsonWhateverFunctionsAreCalled) {
  const ScopedDirectory directory;
  std::string euros;
  while (euros.size() < 201) euros += "\u20ac";
  const std::string replaced = "\uFFFD";
  {
    const ScopedVariable layers("BACKPLANE_LAYERS", "trace?chrome=" + directory.path().string() + "/%g-%r.json");
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
}

}  // namespace
}  // namespace backplane::test
