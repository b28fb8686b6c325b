// SPDX-License-Identifier: Apache-2.0
//
// The layer `trace`: counters and files.
#include <map>
#include <nlohmann/json.hpp>

#include "layers/prometheus.hpp"
#include "layers/support.hpp"

namespace backplane::test {
namespace {

namespace fs = std::filesystem;

// The value of a metric of one operation; -1 if it is absent.
double metric(const std::string& text, const std::string& name, const std::string& labels) {
  const std::string key = "\nbackplane_" + name + "{" + labels + "} ";
  const size_t at = text.find(key);
  return at == std::string::npos ? -1 : std::stod(text.substr(at + key.size()));
}

std::string labels_of(int rank, const std::string& op, const std::string& more = "") {
  return "group=\"test\",rank=\"" + std::to_string(rank) + "\",op=\"" + op + "\"" + more;
}

class LayerTraceTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, LayerTraceTest, testing::ValuesIn(built_backends()));

void exchange(ProcessGroup& group, int count) {
  std::vector<int> data(100, group.rank());
  for (int i = 0; i < count; ++i) {
    if (group.rank() == 0) {
      group.send(data, 1, 3);
    } else {
      group.recv(data, 0, 3);
    }
  }
}

TEST_P(LayerTraceTest, CountsOperationsAndFailures) {
  const ScopedDirectory directory;
  const std::string base = directory.path().string();
  in_layers("trace?interval=0&file=" + base + "/m-%r.prom", GetParam(), 2, [](ProcessGroup& group) {
    exchange(group, 10);
    int value = 0;
    if (group.rank() == 1) {
      Work late = group.irecv(as_buffer(value), 0, 9);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the least that it takes
      late.cancel();
      EXPECT_EQ(failure_of([&] { late.wait(); }), Status::kCancelled);
    }
    group.barrier();
  });
  const std::string sender = content(directory.path() / "m-0.prom");
  EXPECT_GE(metric(sender, "operation_seconds_count", labels_of(0, "send")), 10);
  EXPECT_GE(metric(sender, "operation_bytes_total", labels_of(0, "send")), 4000);
  EXPECT_EQ(metric(sender, "operations_in_flight", labels_of(0, "send")), 0);
  const std::string receiver = content(directory.path() / "m-1.prom");
  EXPECT_GE(metric(receiver, "operation_seconds_count", labels_of(1, "recv")), 11);
  EXPECT_EQ(metric(receiver, "operation_failures_total", labels_of(1, "recv", ",status=\"cancelled\"")), 1) << receiver;
  double last = metric(receiver, "operation_seconds_min", labels_of(1, "recv"));
  EXPECT_GT(last, 0);
  for (const char* share : {"0.5", "0.95", "0.99"}) {
    const double next =
        metric(receiver, "operation_seconds", labels_of(1, "recv", std::string(",quantile=\"") + share + "\""));
    EXPECT_GE(next, last);
    last = next;
  }
  EXPECT_GE(metric(receiver, "operation_seconds_max", labels_of(1, "recv")), last);
  EXPECT_GE(metric(receiver, "operation_seconds_max", labels_of(1, "recv")), 0.01);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()), 2);
  const Exposition read(receiver);
  EXPECT_EQ(read.type("backplane_operation_latency_seconds"), "histogram");
  const std::string latencies = "backplane_operation_latency_seconds_";
  const double all = read[latencies + "count{" + labels_of(1, "recv") + "}"];
  EXPECT_EQ(all, metric(receiver, "operation_seconds_count", labels_of(1, "recv")));
  // One operation took ten milliseconds.
  EXPECT_LE(read[latencies + "bucket{" + labels_of(1, "recv", ",le=\"0.008388607\"") + "}"], all - 1);
  EXPECT_EQ(read[latencies + "bucket{" + labels_of(1, "recv", ",le=\"+Inf\"") + "}"], all);
}

// Perfetto would nest overlapping events of one track.
void expect_drawable(const nlohmann::json& events) {
  std::map<int64_t, double> lane_end;
  for (const auto& event : events) {
    if (event["ph"] != "X") continue;
    double& end = lane_end[event["tid"]];
    EXPECT_GE(event["ts"].get<double>(), end - 1) << event;  // precision of a double of microseconds since 1970
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
}

TEST_P(LayerTraceTest, WritesAPerfettoTrace) {
  const ScopedDirectory directory;
  in_layers("trace?chrome=" + directory.path().string() + "/%g-%r.json", GetParam(), 2, [](ProcessGroup& group) {
    std::vector<Work> works;
    std::vector<int> data(20);
    for (int i = 0; i < 20; ++i) {
      int& value = data[static_cast<size_t>(i)];
      const auto tag = static_cast<uint32_t>(i);
      works.push_back(group.rank() == 0 ? group.isend(as_buffer(value), 1, tag)
                                        : group.irecv(as_buffer(value), 0, tag));
    }
    for (Work& work : works) work.wait();
    group.barrier();
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto trace = nlohmann::json::parse(content(directory.path() / ("test-" + std::to_string(rank) + ".json")));
    const auto& events = trace["traceEvents"];
    const auto messages = std::count_if(events.begin(), events.end(), [rank](const nlohmann::json& event) {
      return event["ph"] == "X" && event["pid"] == rank && event["name"] == (rank == 0 ? "send" : "recv") &&
             event["args"]["bytes"] == 4 && event["args"]["status"] == "ok";
    });
    EXPECT_GE(messages, 20);
    expect_drawable(events);
  }
}

TEST(LayerTraceTest, TraceIsBounded) {
  const ScopedDirectory directory;
  in_layers("trace?events=5&chrome=" + directory.path().string() + "/t", "inproc", 2,
            [](ProcessGroup& group) { exchange(group, 30); });
  // Without %r each rank still gets a file of its own.
  const auto trace = nlohmann::json::parse(content(directory.path() / "t.0"));
  const auto& events = trace["traceEvents"];
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const auto& event) { return event["ph"] == "X"; }), 5);
  EXPECT_EQ(trace["otherData"]["forgotten"], 25);
  EXPECT_EQ(events.back()["args"]["seq"], 30);
  EXPECT_TRUE(fs::exists(directory.path() / "t.1"));
}

TEST(LayerTraceTest, GroupsOfOneProcessWriteSeparateFiles) {
  const ScopedDirectory directory;
  const std::string base = directory.path().string();
  in_layers("trace?file=" + base + "/same&chrome=" + base + "/%g", "self", 1, [](ProcessGroup& group) {
    ProcessGroup child = group.new_group({0}, "a/b \"c");
    int value = 1;
    child.send(as_buffer(value), 0);
    child.recv(as_buffer(value), 0);
    child.destroy();
  });
  EXPECT_TRUE(contains(content(directory.path() / "same.2"), "group=\"a/b \\\"c\",rank=\"0\",op=\"send\""));
  EXPECT_FALSE(contains(content(directory.path() / "same"), "op=\"send\""));
  EXPECT_TRUE(nlohmann::json::accept(content(directory.path() / "a_b__c")));
  const Exposition read(content(directory.path() / "same.2"));
}

TEST(LayerTraceTest, MetricsAreWrittenWhileTheProgramRuns) {
  const ScopedDirectory directory;
  const fs::path path = directory.path() / "m";
  in_layers("trace?interval=1ms&file=" + path.string(), "self", 1, [&path](ProcessGroup& group) {
    int value = 1;
    group.send(as_buffer(value), 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (metric(content(path), "operation_seconds_count", labels_of(0, "send")) != 1) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
    group.recv(as_buffer(value), 0);
  });
}

TEST(LayerTraceTest, UnwritablePathFailsInit) {
  const ScopedVariable variable("BACKPLANE_LAYERS", "trace?file=/nonexistent/m");
  std::string text;
  EXPECT_EQ(failure_of([] { ProcessGroup::create(group_options("self", Store::inproc(), 0, 1)); }, &text),
            Status::kResource);
  EXPECT_TRUE(contains(text, "cannot write /nonexistent/m: No such file or directory")) << text;
  EXPECT_TRUE(contains(refusal("trace?file=/tmp/%25x"), "not part of %r (rank), %g (group) or %%"));
  EXPECT_TRUE(contains(refusal("trace?events=0"), "events"));
}

}  // namespace
}  // namespace backplane::test
