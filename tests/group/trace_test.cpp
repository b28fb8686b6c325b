// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "support/environment.hpp"
#include "support/groups.hpp"
#include "support/scoped_log.hpp"

namespace backplane::test {
namespace {

TEST(TraceTest, RecordsOperationsInOrder) {
  ProcessGroup group = ProcessGroup::create(group_options("self", Store::inproc(), 0, 1));
  std::vector<float> data(8);
  group.barrier();
  group.all_reduce(data, ReduceOp::kMax);
  Work sending = group.isend(data, 0, 3);
  group.recv(data, 0, 3);
  sending.wait();
  const auto trace = nlohmann::json::parse(group.trace());
  EXPECT_EQ(trace["rank"], 0);
  const auto& entries = trace["entries"];
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0]["op"], "barrier");
  EXPECT_EQ(entries[1]["op"], "all_reduce");
  EXPECT_EQ(entries[1]["seq"], 2);
  EXPECT_EQ(entries[1]["dtype"], "f32");
  EXPECT_EQ(entries[1]["count"], 8);
  EXPECT_EQ(entries[1]["reduce_op"], "max");
  EXPECT_EQ(entries[2]["op"], "send");
  EXPECT_EQ(entries[2]["tag"], 3);
  EXPECT_EQ(entries[3]["op"], "recv");
  int64_t before = 1;
  for (const auto& entry : entries) {
    EXPECT_EQ(entry["state"], "done");
    EXPECT_GE(entry["begin_ns"], before);
    EXPECT_GE(entry["end_ns"], entry["begin_ns"]);
    before = entry["begin_ns"];
  }
}

TEST(TraceTest, ADirectoryThatIsMissingIsNamedAtTheStart) {
  const ScopedVariable variable("BACKPLANE_TRACE_DIR", "/nonexistent/traces");
  ScopedLog log;
  const ProcessGroup group = ProcessGroup::create(group_options("self", Store::inproc(), 0, 1));
  EXPECT_NE(log.text().find("BACKPLANE_TRACE_DIR is '/nonexistent/traces', where this process cannot write traces (No "
                            "such file or directory); create the directory, or correct the variable"),
            std::string::npos)
      << log.text();
}

TEST(TraceTest, ShowsOperationsInFlightAndFailedOnes) {
  ProcessGroup group = ProcessGroup::create(group_options("self", Store::inproc(), 0, 1));
  int value = 0;
  Work waiting = group.irecv(as_buffer(value), 0, 1);
  EXPECT_EQ(failure_of([&] { group.recv(as_buffer(value), 0, 2, {.timeout = std::chrono::milliseconds(1)}); }),
            Status::kTimeout);
  const auto entries = nlohmann::json::parse(group.trace())["entries"];
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0]["state"], "in flight");
  EXPECT_EQ(entries[1]["state"], "failed");
  waiting.cancel();
}

TEST(TraceTest, KeepsTheLastEntries) {
  ProcessGroup group = ProcessGroup::create(group_options("self", Store::inproc(), 0, 1));
  for (int i = 0; i < 3000; ++i) group.barrier();
  const auto entries = nlohmann::json::parse(group.trace())["entries"];
  EXPECT_EQ(entries.size(), 1024U);
  EXPECT_EQ(entries.back()["seq"], 3000);
}

}  // namespace
}  // namespace backplane::test
