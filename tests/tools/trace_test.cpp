// SPDX-License-Identifier: Apache-2.0
//
// backplane trace on the trace files of jobs, and on running jobs.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "liveness/job.hpp"
#include "support/groups.hpp"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

using nlohmann::json;

constexpr const char* kOperation = "all_reduce sum (f32 x 4)";

json traced(const std::vector<std::string>& where) {
  std::vector<std::string> words = {"trace", "--format", "json"};
  words.insert(words.end(), where.begin(), where.end());
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(result.is_discarded()) << outcome.out;
  return result.is_discarded() ? json{{"remarks", json::array()}, {"events", json::array()}} : result;
}

bool remarks_on(const json& trace, const std::string& text) {
  const auto& remarks = trace["remarks"];
  return std::find(remarks.begin(), remarks.end(), "group 'world': " + text) != remarks.end();
}

// The event of this rank with this number of a collective; null if there is none.
json event(const json& trace, int rank, int number) {
  for (const json& each : trace["events"]) {
    if (each["rank"] == rank && each["number"] == number) return each;
  }
  return {};
}

void expect_refusal(const std::vector<std::string>& words, int code, const std::string& text) {
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, code);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(contains(outcome.err, text)) << outcome.err;
}

class TraceCommand : public testing::TestWithParam<std::string> {
 protected:
  const ScopedDirectory place_;
  const std::string directory_ = place_.file("");
  const Variables variables_ = {{"BACKPLANE_TRACE_DIR", directory_}};

  std::string dump(int rank) const { return place_.file("0.rank" + std::to_string(rank) + ".json"); }
  void await_dumps(const std::vector<int>& ranks) const {
    for (const int rank : ranks) {
      EXPECT_TRUE(eventually([this, rank] { return fs::exists(dump(rank)); })) << dump(rank);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, TraceCommand, testing::ValuesIn(process_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(TraceCommand, MergesTracesOfSurvivors) {
  Job job(GetParam(), 3, Host::kLauncher, variables_);
  job.init();
  for (const std::string& answer : job.call({0, 1, 2}, "all_reduce")) EXPECT_EQ(answer, "sum 3");
  const std::string loss = job.name(1) + " is lost: its process ended";
  job.send({0, 2}, "all_reduce");
  EXPECT_TRUE(eventually([&job] {
    const json trace = traced({"--store", "127.0.0.1:" + job.port()});
    return event(trace, 0, 2).is_object() && event(trace, 2, 2).is_object();
  }));
  job[1].kill();
  job.receive({0, 2});
  await_dumps({0, 2});
  const std::set<std::string> survivors = {job.name(0), job.name(2)};
  job.quit({0, 2});

  const json trace = traced({directory_});
  EXPECT_TRUE(remarks_on(trace, "no trace of rank 1")) << trace["remarks"];
  EXPECT_TRUE(remarks_on(trace, "broken on rank 0: " + loss)) << trace["remarks"];
  EXPECT_TRUE(remarks_on(trace, "broken on rank 2: " + loss)) << trace["remarks"];
  for (const int rank : {0, 2}) {
    const json first = event(trace, rank, 1);
    ASSERT_TRUE(first.is_object()) << trace["events"];
    EXPECT_EQ(first["operation"], kOperation);
    EXPECT_EQ(first["state"], "done");
    EXPECT_GT(first["begin_ns"], 0);
    EXPECT_GE(first["end_ns"], first["begin_ns"]);
    const json second = event(trace, rank, 2);
    ASSERT_TRUE(second.is_object()) << trace["events"];
    EXPECT_NE(second["state"], "done");  // failed, or in flight if its trace was written first
  }
  const auto& events = trace["events"];
  EXPECT_TRUE(std::is_sorted(events.begin(), events.end(),
                             [](const json& a, const json& b) { return a["begin_ns"] < b["begin_ns"]; }));

  const Outcome table = run({"trace", directory_, "--last", "1"});
  EXPECT_EQ(table.code, 0);
  EXPECT_TRUE(contains(table.out, "group 'world': broken on rank 0: " + loss)) << table.out;
  EXPECT_TRUE(contains(table.out, "OPERATION")) << table.out;
  const size_t row = table.out.find(kOperation);
  ASSERT_NE(row, std::string::npos) << table.out;
  EXPECT_EQ(table.out.find(kOperation, row + 1), std::string::npos) << table.out;

  const std::string chrome_file = place_.file("chrome.out");
  const Outcome chrome = run({"trace", dump(0), dump(2), "--format", "chrome", "-o", chrome_file});
  EXPECT_EQ(chrome.code, 0) << chrome.err;
  EXPECT_EQ(chrome.out, "");
  const json parsed = json::parse(read_file(chrome_file), nullptr, false);
  ASSERT_TRUE(parsed.is_object());
  std::set<int> whole;
  std::set<std::string> names;
  for (const json& each : parsed["traceEvents"]) {
    if (each["ph"] == "M" && each["name"] == "process_name") names.insert(each["args"]["name"]);
    if (each["ph"] != "X") continue;
    EXPECT_GE(each["dur"], 0);
    if (each["args"]["number"] == 1) whole.insert(each["pid"].get<int>());
  }
  EXPECT_EQ(names, survivors);
  EXPECT_EQ(whole, (std::set<int>{0, 2}));
}

TEST_P(TraceCommand, NamesTheRankThatCausedATimeout) {
  Job job(GetParam(), 3, Host::kLauncher, variables_);
  job.init();
  job.call({0, 1, 2}, "all_reduce");
  const auto answers = job.call({0, 2}, "hurry 5000");  // of which rank 1 has a tenth to answer
  await_dumps({0, 1, 2});                               // rank 1 is notified that its group is broken
  const json trace = traced({directory_});
  EXPECT_TRUE(remarks_on(trace, job.name(1) + " has entered 1 collectives where others have entered 2"))
      << trace["remarks"];
  EXPECT_EQ(event(trace, 0, 2)["operation"], kOperation);
  EXPECT_TRUE(event(trace, 1, 2).is_null());
  for (const std::string& answer : answers) EXPECT_TRUE(contains(answer, job.name(1))) << answer;
  job.quit({0, 1, 2});
}

TEST_P(TraceCommand, DumpsOnRequestWhileTheJobWaits) {
  Job job(GetParam(), 3, Host::kLauncher, variables_);
  job.init();
  job.send({0, 2}, "all_reduce");
  std::ofstream(place_.file("request")) << "please\n";
  await_dumps({0, 1, 2});
  const json trace = traced({directory_});
  EXPECT_TRUE(event(trace, 1, 1).is_null());
  job[1].send("all_reduce");
  for (const std::string& answer : job.receive({0, 1, 2})) EXPECT_EQ(answer, "sum 3");  // the job is unaffected
  job.quit({0, 1, 2});
}

TEST_P(TraceCommand, QueriesRunningAndEndedJobs) {
  Job job(GetParam(), 3, Host::kLauncher, {{"BACKPLANE_HEARTBEAT_LIMIT", "60s"}});
  const std::string store = "127.0.0.1:" + job.port();
  job.init();
  job.call({0, 1, 2}, "all_reduce");
  job.send({0, 2}, "all_reduce");
  const std::string behind = job.name(1) + " has entered 1 collectives where others have entered 2";
  json trace;
  EXPECT_TRUE(eventually([&] {
    trace = traced({"--store", store});
    return remarks_on(trace, behind);
  })) << trace["remarks"];
  for (const int rank : {0, 2}) EXPECT_EQ(event(trace, rank, 2)["state"], "in flight") << trace["events"];
  EXPECT_EQ(event(trace, 1, 1)["state"], "done");

  job[1].signal(SIGSTOP);  // a suspended rank is missing; the others are shown
  trace = traced({"--store", store, "--timeout", "10"});
  EXPECT_TRUE(remarks_on(trace, "no trace of rank 1")) << trace["remarks"];
  EXPECT_EQ(event(trace, 2, 2)["operation"], kOperation);
  job[1].signal(SIGCONT);
  job[1].send("all_reduce");
  for (const std::string& answer : job.receive({0, 1, 2})) EXPECT_EQ(answer, "sum 3");

  expect_refusal({"trace", "--store", store, "--group", "other", "--timeout", "2"}, 1,
                 "backplane: cannot get the trace of group 'other' from the store at " + store + ": ");
  expect_refusal({"trace", "--store", store, "--job", "other", "--timeout", "20"}, 1,
                 "belongs to another job, this rank is of job 'other'");
  job.quit({0, 1, 2});
  expect_refusal({"trace", "--store", store, "--timeout", "2"}, 1,
                 "no group 'world' uses this store: its job has not started, or has ended");
  job.server().kill();
  expect_refusal({"trace", "--store", store, "--timeout", "0.5"}, 1,
                 "could not reach the store at " + store + " within ");
}

TEST(TraceCommandFiles, ReportsInvalidFiles) {
  const ScopedDirectory place;
  const std::string directory = place.file("");
  expect_refusal({"trace", directory}, 1, "no trace files in");
  expect_refusal({"trace", place.file("none")}, 2, place.file("none") + " does not exist");
  const std::string neither = "name either trace files or directories, or a running job by --store";
  expect_refusal({"trace"}, 2, neither);
  expect_refusal({"trace", directory, "--store", "127.0.0.1:1"}, 2, neither);
  for (const char* address : {"localhost", "localhost:", "localhost:0", "localhost:70000", "localhost:1x"}) {
    expect_refusal({"trace", "--store", address}, 2, "--store " + std::string(address) + ": expected HOST:PORT");
  }
  const std::string file = place.file("0.rank0.json");
  for (const char* text : {"", "{",
                           "\x7f"
                           "ELF",
                           "{\"group\": \"world\", \"key\":"}) {
    std::ofstream(file) << text;
    expect_refusal({"trace", directory}, 1, file + " is not JSON");
  }
  for (const char* text : {"{}", "[]", "null", "17", "{\"traces\": 3}", "{\"traces\": [{}]}",
                           "{\"clock\": {\"realtime_ns\": \"x\", \"monotonic_ns\": 0}}"}) {
    std::ofstream(file) << text;
    expect_refusal({"trace", directory}, 1, file + " is not a trace of Backplane");
  }
}

std::string made_up(int rank, int64_t world_size, const std::string& op) {
  return json{
      {"group", "world"},
      {"key", "0"},
      {"rank", rank},
      {"world_size", world_size},
      {"identity", "host, pid 1"},
      {"broken", ""},
      {"clock", {{"realtime_ns", 1000}, {"monotonic_ns", 0}}},
      {"entries",
       {{{"op", op}, {"dtype", "f32"}, {"count", 2}, {"seq", 1}, {"state", "done"}, {"begin_ns", 1}, {"end_ns", 2}}}}}
      .dump();
}

TEST(TraceCommandFiles, NamesTheFirstDifferenceAndSomeMissingRanks) {
  const ScopedDirectory place;
  std::ofstream(place.file("a.json")) << made_up(0, 1'000'000'000, "all_reduce");
  std::ofstream(place.file("b.json")) << made_up(3, 1'000'000'000, "broadcast");
  const json trace = traced({place.file("")});
  EXPECT_TRUE(remarks_on(trace, "rank 3 entered broadcast (f32 x 2) as #1 where rank 0 entered all_reduce (f32 x 2)"))
      << trace["remarks"];
  EXPECT_TRUE(remarks_on(trace, "no trace of ranks 1, 2, 4, 5, 6, 7, 8, 9 and of 999999990 more")) << trace["remarks"];
}

TEST(TraceCommandFiles, ShowsCallsBetweenWorkers) {
  const ScopedDirectory place;
  json trace = json::parse(made_up(0, 2, "barrier"));
  json call = {{"kind", "call"}, {"direction", "out"}, {"function", "f"}, {"peer", 1},     {"worker", "worker1"},
               {"number", 7},    {"status", 0},        {"state", "done"}, {"begin_ns", 3}, {"end_ns", 4}};
  trace["calls"].push_back(call);
  call.update({{"direction", "in"}, {"number", 8}, {"state", "running"}, {"end_ns", 0}});
  trace["calls"].push_back(call);
  const std::string file = place.file("a.json");
  std::ofstream(file) << trace.dump();
  const json events = traced({file})["events"];
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1]["operation"], "call 'f' on worker1 (rank 1)");
  EXPECT_EQ(events[2]["operation"], "call 'f' for worker1 (rank 1)");
  EXPECT_EQ(events[2]["state"], "running");
  EXPECT_EQ(events[2]["number"], 8);
}

TEST(TraceCommandFiles, EscapesControlCharacters) {
  const ScopedDirectory place;
  const std::string file = place.file("a.json");
  std::ofstream(file) << made_up(0, 1, "\x1b[2Jbarrier");
  const Outcome outcome = run({"trace", file});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_FALSE(contains(outcome.out, "\x1b")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "barrier")) << outcome.out;
}

}  // namespace
}  // namespace backplane::test
