// SPDX-License-Identifier: Apache-2.0
//
// What `auto` comes to when the ranks see different things.
#include "registry/choice.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "error.hpp"

namespace backplane::core {
namespace {

struct View {
  std::vector<Candidate> candidates;
  std::string place = "here";
};

// What each rank was told: "id: reason", or what was thrown.
std::vector<std::string> told(const std::vector<View>& views) {
  const std::shared_ptr<Store> store = make_inproc_store();
  std::vector<std::string> result(views.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < views.size(); ++rank) {
    threads.emplace_back([rank, &views, &store, &result] {
      try {
        const Choice choice =
            agree_on_backend(*store, static_cast<int32_t>(rank), static_cast<int32_t>(views.size()),
                             views[rank].candidates, views[rank].place, Deadline::after(INT64_C(20'000'000'000)));
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

TEST(ChoiceTest, RanksElsewhere) {
  EXPECT_EQ(told({{kAll}, {kAll}, {kAll, "there"}})[0],
            "gloo: 3 ranks, all of which can use it; not shm: not all ranks have it, on one host and as one user");
}

TEST(ChoiceTest, OneRankLacksIt) {
  EXPECT_EQ(told({{kAll}, {{{"zmq", ""}}}})[0].substr(0, 37), "zmq: 2 ranks, all of which can use it");
}

TEST(ChoiceTest, OneRankCannotUseIt) {
  const View other = {{{"shm", "mount /proc"}, {"gloo", ""}, {"zmq", ""}}, "here"};
  EXPECT_EQ(told({{kAll}, {kAll}, other})[0], "gloo: 3 ranks, all of which can use it; not shm: rank 2: mount /proc");
}

TEST(ChoiceTest, NothingForAll) {
  EXPECT_EQ(told({{{{"gloo", ""}}}, {{{"zmq", ""}}}})[0].substr(0, 52),
            fmt::format("{} auto found no backend that all 2 ranks can use; not", BP_UNSUPPORTED).substr(0, 52));
}

// The registry of the process: what is built in is for one process, so none of it is a candidate.
TEST(ChoiceTest, CandidatesJoinProcesses) {
  Registry registry;
  for (const Candidate& each : candidates(registry)) {
    EXPECT_NE(each.id, "self");
    EXPECT_NE(each.id, "inproc");
  }
  EXPECT_EQ(shared_place(), shared_place());
}

}  // namespace
}  // namespace backplane::core
