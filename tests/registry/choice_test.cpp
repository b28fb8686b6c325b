// SPDX-License-Identifier: Apache-2.0
//
// The choice of `auto` if the ranks have different backends, hosts and tuning tables.
#include "registry/choice.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "backplane/abi/ext/plan.h"
#include "error.hpp"
#include "log.hpp"
#include "registry/tuning.hpp"
#include "support/environment.hpp"

namespace backplane::core {
namespace {

struct View {
  std::vector<Candidate> candidates;
  std::string domain = "here";
  std::string tuning = {};
};

// The choice of each rank, "id: reason", or its error.
std::vector<std::string> told(const std::vector<View>& views) {
  const std::shared_ptr<Store> store = make_inproc_store();
  std::vector<std::string> result(views.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < views.size(); ++rank) {
    threads.emplace_back([rank, &views, &store, &result] {
      try {
        const Choice choice = agree_on_backend(*store, static_cast<int32_t>(rank), static_cast<int32_t>(views.size()),
                                               views[rank].candidates, views[rank].domain, views[rank].tuning,
                                               Deadline::after(INT64_C(20'000'000'000)));
        result[rank] = choice.reason;
      } catch (const Error& e) {
        result[rank] = fmt::format("{} {}", e.status(), e.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : result) EXPECT_EQ(text, result[0]);
  return result;
}

const std::vector<Candidate> kAll = {{"shm", ""}, {"gloo", ""}, {"zmq", ""}};

TEST(ChoiceTest, OneHostSharesMemory) { EXPECT_EQ(told({{kAll}, {kAll}, {kAll}})[0], "shm: 3 ranks on one host"); }

TEST(ChoiceTest, NamesTheRemarkOfTheChosenBackend) {
  const std::vector<Candidate> remarked = {{"shm", "", false, "", "shm: 2 MiB"}, {"gloo", "", false, "", "gloo: eth0"}};
  EXPECT_EQ(told({{remarked}, {remarked}})[0], "shm: 2 ranks on one host (shm: 2 MiB)");
}

TEST(ChoiceTest, RanksElsewhere) {
  EXPECT_EQ(told({{kAll}, {kAll, "there"}})[0],
            "gloo: 2 ranks, all of which can use it; not shm: not all ranks have it, on one host and as one user");
}

TEST(ChoiceTest, RanksThatShareHosts) {
  EXPECT_EQ(told({{kAll}, {kAll}, {kAll, "there"}})[0],
            "shm+gloo: 3 ranks on 2 hosts, shm inside each host and gloo between them");
  const View without_gloo = {{{"shm", ""}, {"zmq", ""}}, "there"};
  EXPECT_EQ(told({{kAll}, {kAll}, without_gloo})[0],
            "shm+zmq: 3 ranks on 2 hosts, shm inside each host and zmq between them");
  Candidate without_messages = {"gloo", ""};
  without_messages.can_compose = false;
  const View cannot_compose = {{{"shm", ""}, without_messages}, "there"};
  EXPECT_EQ(told({cannot_compose, cannot_compose, {cannot_compose.candidates}})[0].substr(0, 38),
            "gloo: 3 ranks, all of which can use it");
  const View without_shm = {{{"gloo", ""}}, "there"};
  EXPECT_EQ(told({{kAll}, {kAll}, without_shm})[0].substr(0, 38), "gloo: 3 ranks, all of which can use it");
}

TEST(ChoiceTest, OneRankLacksIt) {
  EXPECT_EQ(told({{kAll}, {{{"zmq", ""}}}})[0].substr(0, 37), "zmq: 2 ranks, all of which can use it");
}

TEST(ChoiceTest, OneRankCannotUseIt) {
  const View other = {{{"shm", "mount /proc"}, {"gloo", ""}, {"zmq", ""}}, "here"};
  EXPECT_EQ(told({{kAll}, {kAll}, other})[0], "gloo: 3 ranks, all of which can use it; not shm: rank 2: mount /proc");
}

TEST(ChoiceTest, FailsIfNoBackendSuitsAll) {
  EXPECT_EQ(told({{{{"gloo", ""}}}, {{{"zmq", ""}}}})[0].substr(0, 52),
            fmt::format("{} auto found no backend that all 2 ranks can use; not", BP_UNSUPPORTED).substr(0, 52));
}

// Device memory uses a backend that all ranks can use, on one host with one device per rank.
TEST(ChoiceTest, DevicesBesideTheHost) {
  const auto on = [](const std::string& device, const std::string& domain = "here") {
    return View{{{"gloo", ""}, {"nccl", "", true, device}}, domain};
  };
  View remarkable = on("0");
  remarkable.candidates[1].remark = "no peer access";
  View other = remarkable;
  other.candidates[1].device = "1";
  EXPECT_EQ(told({remarkable, other})[0],
            "gloo: 2 ranks, all of which can use it; nccl for device memory (no peer access)");
  EXPECT_EQ(told({on("0"), on("1")})[0], "gloo: 2 ranks, all of which can use it; nccl for device memory");
  EXPECT_EQ(told({on("0"), on("0", "there")})[0], "gloo: 2 ranks, all of which can use it") << "two hosts";
  EXPECT_EQ(told({on("0"), on("0")})[0], "gloo: 2 ranks, all of which can use it") << "one device for two";
  const View none = {{{"gloo", ""}, {"nccl", "no device was named for this rank"}}, "here"};
  EXPECT_EQ(told({on("0"), none})[0], "gloo: 2 ranks, all of which can use it");
  EXPECT_EQ(told({on("0"), {{{"gloo", ""}}}})[0], "gloo: 2 ranks, all of which can use it");
}

constexpr const char* kTuning = R"({"format": "backplane-tuning/1", "measured": [
  {"ranks": 2, "operation": "all_reduce", "bytes": 1024, "us": {"shm": 9000, "gloo": 190}},
  {"ranks": 2, "operation": "all_reduce", "bytes": 4, "us": {"shm": 1.6, "gloo": 180, "zmq": 95.4}},
  {"ranks": 8, "operation": "all_reduce", "bytes": 4, "us": {"shm": 5, "zmq": 4.9}}]})";

TEST(ChoiceTest, ReportsMeasurements) {
  const View tuned = {kAll, "here", kTuning};
  EXPECT_EQ(told({tuned, {kAll}, {kAll}})[0],
            "shm: 3 ranks on one host; measured with 2 ranks 1.6 us at 4 B, gloo 180, zmq 95; "
            "all_reduce of 1 KiB and more by gloo");
  const TuningTable table(kTuning);
  EXPECT_EQ(table.measurements("gloo", {"gloo"}, 2), "measured 180 us at 4 B");
  EXPECT_EQ(table.measurements("other", {"other"}, 2), "");
}

TEST(ChoiceTest, TheFastestByTheTableOfRankZero) {
  const std::vector<Candidate> most = {{"gloo", ""}, {"zmq", ""}};
  const View tuned = {most, "here", kTuning};
  const View misled = {most, "here", R"({"format": "backplane-tuning/1", "measured": []})"};
  EXPECT_EQ(told({tuned, misled})[0], "zmq: 2 ranks, all of which can use it; measured 95 us at 4 B, gloo 180");
  EXPECT_EQ(told({misled, tuned})[0], "gloo: 2 ranks, all of which can use it");
  const View elsewhere = {most, "there", kTuning};
  EXPECT_EQ(told({tuned, elsewhere})[0], "gloo: 2 ranks, all of which can use it") << "it was measured on one host";
}

TEST(ChoiceTest, OnlyWhatIsClearlyFasterIsPreferred) {
  const TuningTable table(kTuning);
  EXPECT_EQ(table.fastest({"shm", "zmq"}, 8), "shm") << "2% are noise";
  EXPECT_EQ(table.fastest({"shm", "gloo"}, 2), "shm") << "by the mean of both rows";
  EXPECT_EQ(table.fastest({"zmq", "shm"}, 2), "shm");
  EXPECT_EQ(table.fastest({"zmq", "nothing"}, 2), "zmq");
  EXPECT_EQ(TuningTable().fastest({"zmq", "shm"}, 2), "zmq");
}

// Sizes at which another backend takes at most two thirds of the time.
TEST(ChoiceTest, FasterBackendsServeTheirOperations) {
  const View tuned = {kAll, "here", R"({"format": "backplane-tuning/1", "measured": [
    {"ranks": 2, "operation": "all_reduce", "bytes": 4, "us": {"shm": 1, "gloo": 50, "zmq": 60}},
    {"ranks": 2, "operation": "all_reduce", "bytes": 1024, "us": {"shm": 90, "gloo": 50, "zmq": 60}},
    {"ranks": 2, "operation": "all_reduce", "bytes": 65536, "us": {"shm": 90, "gloo": 70, "zmq": 55}},
    {"ranks": 2, "operation": "all_reduce", "bytes": 1048576, "us": {"shm": 90, "gloo": 90, "zmq": 55}},
    {"ranks": 2, "operation": "broadcast", "bytes": 4096, "us": {"shm": 90, "gloo": 20, "zmq": 40}},
    {"ranks": 2, "operation": "broadcast", "bytes": 1024, "us": {"shm": 90, "gloo": 20, "other": 4}},
    {"ranks": 2, "operation": "broadcast", "bytes": 65536, "us": {"shm": 4, "gloo": 3}},
    {"ranks": 2, "operation": "gather", "bytes": 4, "us": {"shm": 9, "gloo": 5}},
    {"ranks": 2, "operation": "send_recv", "bytes": 4, "us": {"shm": 9, "gloo": 5}},
    {"ranks": 2, "operation": "barrier", "bytes": 0, "us": {"shm": 1, "gloo": 0.1}},
    {"ranks": 2, "operation": "scatter", "bytes": 4, "us": {"shm": 0.001, "gloo": 500, "zmq": 500}}]})"};
  EXPECT_EQ(
      told({tuned, {kAll}})[0],
      "shm: 2 ranks on one host; measured 1.0 us at 4 B, gloo 50, zmq 60; all_reduce from 1 KiB to below 64 KiB by "
      "gloo, all_reduce of 64 KiB and more by zmq, broadcast below 64 KiB by gloo, gather of all sizes by gloo");
}

// Ranks may wait for the operations of two backends in any order.
TEST(ChoiceTest, OnlyAutonomousBackendsShareAGroup) {
  constexpr const char* kTable = R"({"format": "backplane-tuning/1", "measured": [
    {"ranks": 2, "operation": "all_reduce", "bytes": 4, "us": {"shm": 1, "gloo": 5}},
    {"ranks": 2, "operation": "all_reduce", "bytes": 1024, "us": {"shm": 9, "gloo": 5}}]})";
  const View lazy = {{{"shm", ""}, {"gloo", "", false}}, "here", kTable};
  EXPECT_EQ(told({lazy, lazy})[0], "shm: 2 ranks on one host; measured 1.0 us at 4 B, gloo 5.0");
  const View both = {{{"shm", ""}, {"gloo", ""}}, "here", kTable};
  EXPECT_EQ(told({both, both})[0],
            "shm: 2 ranks on one host; measured 1.0 us at 4 B, gloo 5.0; all_reduce of 1 KiB and more by gloo");
}

TEST(ChoiceTest, NoTableAtAll) {
  constexpr std::pair<const char*, const char*> kCases[] = {
      {"", "parse_error"},
      {"{", "parse_error"},
      {"[]", "type_error"},
      {R"({"format": "x", "measured": []})", "its format is not backplane-tuning/1"},
      {R"({"format": "backplane-tuning/1"})", "key 'measured' not found"},
      {R"({"format": "backplane-tuning/1", "measured": [{"ranks": 2}]})", "key 'operation' not found"},
      {R"({"format": "backplane-tuning/1", "measured": [
          {"ranks": 0, "operation": "x", "bytes": 4, "us": {"shm": 1}}]})",
       "ranks and times must be positive"},
      {R"({"format": "backplane-tuning/1", "measured": [
          {"ranks": 2, "operation": "x", "bytes": 4, "us": {"shm": -1}}]})",
       "ranks and times must be positive"}};
  for (const auto& [text, expected] : kCases) {
    try {
      const TuningTable table(text);
      ADD_FAILURE() << "'" << text << "' is taken for a table";
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), BP_INVALID) << text;
      EXPECT_NE(std::string(e.what()).find(expected), std::string::npos) << text << ": " << e.what();
    }
  }
}

// A table that cannot be opened is not reported as malformed.
TEST(ChoiceTest, AnUnreadableTableIsReported) {
  const test::ScopedDirectory directory;
  const std::string path = (directory.path() / "tuning").string();
  const std::string table = R"({"format": "backplane-tuning/1", "measured": []})";
  std::ofstream(path) << table;
  const test::ScopedVariable variable("BACKPLANE_TUNING_FILE", path);
  EXPECT_EQ(tuning_text(), table);
  std::string told;
  set_log([](void* ctx, uint32_t, const char* text) { *static_cast<std::string*>(ctx) = text; }, &told);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string text = tuning_text();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  set_log(nullptr, nullptr);
  EXPECT_EQ(text, "");
  EXPECT_NE(told.find("it cannot be opened (Too many open files)"), std::string::npos) << told;
}

// A process group that no rank can create.
bp_backend backend_called(const char* id) {
  bp_backend backend = {};
  backend.struct_size = sizeof backend;
  backend.kinds = BP_KIND_PROCESS_GROUP;
  backend.id = id;
  backend.version = "1";
  backend.summary = "of this test";
  backend.init = [](const bp_backend*, const bp_init*, bp_agent*, bp_error*) -> int32_t { return BP_INTERNAL; };
  return backend;
}

// Built-in backends work within one process and are no candidates.
TEST(ChoiceTest, CandidatesJoinProcesses) {
  const bp_backend joins = backend_called("joins");
  bp_backend local = backend_called("local");
  local.flags = BP_BACKEND_LOCAL;
  bp_backend one_process = backend_called("one_process");
  one_process.flags = BP_BACKEND_ONE_PROCESS;
  bp_backend calls = backend_called("calls");
  calls.kinds = BP_KIND_RPC;
  Registry registry;
  registry.register_backend(joins);
  registry.register_backend(local);
  registry.register_backend(one_process);
  registry.register_backend(calls);
  std::set<std::string> found;
  for (const Candidate& each : candidates(registry, 2, -1)) found.insert(each.id);
  EXPECT_EQ(found.count("joins"), 1U);
  for (const char* other : {"local", "one_process", "calls", "self", "inproc"}) {
    EXPECT_EQ(found.count(other), 0U) << other;
  }
}

// Ranks of one boot of one host and one user.
TEST(ChoiceTest, AMemoryDomainIsABootOfAHostAndAUser) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  ASSERT_FALSE(boot.empty());
  const std::string domain = memory_domain();
  EXPECT_TRUE(domain.starts_with(boot + " ")) << domain;
  EXPECT_TRUE(domain.ends_with(fmt::format(" {}", ::geteuid()))) << domain;
}

// A probe gets the number of ranks while `auto` chooses, and otherwise no `backplane.plan/1`.
TEST(ChoiceTest, ProbesKnowTheGroup) {
  bp_backend narrow = backend_called("narrow");
  narrow.probe = [](const bp_backend*, const bp_host* host, bp_error* err) -> int32_t {
    const auto* const plan = static_cast<const bp_plan_api*>(host->extension(host->ctx, BP_EXT_PLAN));
    if (plan == nullptr || plan->world_size <= 3) return BP_OK;
    return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "more than 3 ranks");
  };
  Registry registry;
  registry.register_backend(narrow);
  const auto objection = [&registry](int32_t world_size) {
    for (const Candidate& each : candidates(registry, world_size, -1)) {
      if (each.id == "narrow") return each.objection;
    }
    return std::string("it is no candidate");
  };
  EXPECT_EQ(objection(3), "");
  EXPECT_NE(objection(4).find("more than 3 ranks"), std::string::npos) << objection(4);
  EXPECT_NO_THROW(probe(registry.lookup("narrow")));
}

}  // namespace
}  // namespace backplane::core
