// SPDX-License-Identifier: Apache-2.0
//
// A group that is being made ends with the one that it is made from; and shrinking where nobody dies.
#include <future>
#include <regex>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

// The first of two ranks makes a subgroup, for which the second never comes; `end` ends it. What the first is told.
std::string ended_by(const std::function<void(ProcessGroup&)>& end, Status* status) {
  const Store store = Store::inproc();
  std::promise<void> over;
  std::shared_future<void> told = over.get_future().share();
  std::string text;
  on_ranks(2, [&store, &end, &over, told, &text, status](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 2));
    if (rank == 1) return told.wait();
    std::thread maker([&group, &text, status] { *status = failure_of([&group] { group.new_group({0, 1}); }, &text); });
    Store(store).wait({"group/test/0/child0-0/bp/join/rank/0"});  // it waits for the second
    end(group);
    maker.join();
    over.set_value();
  });
  return text;
}

TEST(StartTest, AbortEndsNewGroup) {
  Status status = Status::kInternal;
  const std::string text = ended_by([](ProcessGroup& group) { group.abort("enough"); }, &status);
  EXPECT_EQ(status, Status::kCancelled);
  EXPECT_NE(text.find("enough"), std::string::npos) << text;
}

TEST(StartTest, DestroyEndsNewGroup) {
  Status status = Status::kInternal;
  const std::string text = ended_by([](ProcessGroup& group) { group.destroy(); }, &status);
  EXPECT_TRUE(status == Status::kCancelled || status == Status::kInvalid) << text;
  EXPECT_NE(text.find("destroyed"), std::string::npos) << text;
}

TEST(StartTest, ShrinkWithoutADeathKeepsAll) {
  const Store store = Store::inproc();
  on_ranks(3, [&store](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 3));
    group.abort("a test");
    ProcessGroup whole = group.shrink();
    EXPECT_EQ(whole.rank(), rank);
    EXPECT_EQ(whole.world_size(), 3);
    group.destroy();  // the new one stays
    int value = 1;
    whole.all_reduce(as_buffer(value));
    EXPECT_EQ(value, 3);
    whole.barrier();
  });
}

// News of a death may come while the survivors are on their way: it breaks the old group only.
TEST(StartTest, AbortDuringShrinkDoesNotEndIt) {
  const Store store = Store::inproc();
  std::promise<void> aborted;
  std::shared_future<void> told = aborted.get_future().share();
  on_ranks(2, [&store, &aborted, told](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 2));
    if (rank == 1) {
      Store(store).set("group/test/0/shrink0/here/1", "1");  // so that rank 0 starts the new group
      told.wait();
    }
    std::thread breaker([&store, &group, &aborted, rank] {
      if (rank == 1) return;
      Store(store).wait({"group/test/0/shrink0/group/bp/join/rank/0"});
      group.abort("a test");
      aborted.set_value();
    });
    ProcessGroup whole = group.shrink();
    breaker.join();
    EXPECT_EQ(whole.world_size(), 2);
    whole.barrier();
  });
}

TEST(StartTest, ShrinkNamesMissingRanks) {
  const Store store = Store::inproc();
  std::promise<void> over;
  std::shared_future<void> told = over.get_future().share();
  on_ranks(3, [&store, &over, told](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 3));
    if (rank == 1) return told.wait();
    if (rank == 2) return group.destroy();  // who left is not waited for
    std::string text;
    EXPECT_EQ(failure_of([&group] { group.shrink(std::chrono::milliseconds(300)); }, &text), Status::kTimeout);
    // What was left when it began.
    EXPECT_TRUE(
        std::regex_search(text, std::regex("rank 1 did not come within ([0-9]|[1-9][0-9]|[12][0-9]{2}|300) ms")))
        << text;
    over.set_value();
  });
}

}  // namespace
}  // namespace backplane::test
