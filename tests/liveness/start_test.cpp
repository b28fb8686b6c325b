// SPDX-License-Identifier: Apache-2.0
//
// The start of a subgroup ends with its parent; shrink without a death.
#include <future>
#include <regex>

#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

// Rank 0 of two ranks creates a subgroup, which rank 1 never joins; `end` ends it. Returns the error of rank 0.
std::string ended_by(const std::function<void(ProcessGroup&)>& end, Status* status) {
  const Store store = Store::inproc();
  std::promise<void> over;
  std::shared_future<void> ended = over.get_future().share();
  std::string text;
  on_ranks(2, [&store, &end, &over, ended, &text, status](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 2));
    if (rank == 1) {
      EXPECT_TRUE(in_time(ended));
      return;
    }
    std::thread maker([&group, &text, status] { *status = failure_of([&group] { group.new_group({0, 1}); }, &text); });
    Store(store).wait({"group/test/0/group/0.0-0/bp/join/rank/0"});  // rank 0 waits for rank 1
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

TEST(StartTest, ShrinkWithoutADeathKeepsAllRanks) {
  const Store store = Store::inproc();
  on_ranks(3, [&store](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 3));
    group.abort("a test");
    ProcessGroup whole = group.shrink();
    EXPECT_EQ(whole.rank(), rank);
    EXPECT_EQ(whole.world_size(), 3);
    group.destroy();  // does not end the new group
    int value = 1;
    whole.all_reduce(as_buffer(value));
    EXPECT_EQ(value, 3);
    whole.barrier();
  });
}

// A late report of a death during shrink breaks only the old group.
TEST(StartTest, AbortDuringShrinkDoesNotEndIt) {
  const Store store = Store::inproc();
  std::promise<void> aborted;
  std::shared_future<void> ended = aborted.get_future().share();
  on_ranks(2, [&store, &aborted, ended](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 2));
    if (rank == 1) {
      Store(store).set("group/test/0/shrink0/here/1", "1");  // so that rank 0 starts the new group
      ended.wait();
    }
    std::thread breaker([&store, &group, &aborted, rank] {
      if (rank == 1) return;
      Store(store).wait({"group/test/0/group/0.s0/bp/join/rank/0"});
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
  std::shared_future<void> ended = over.get_future().share();
  std::promise<void> left;
  on_ranks(3, [&store, &over, &left, ended](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 3));
    if (rank == 1) {
      EXPECT_TRUE(in_time(ended));
      return;
    }
    if (rank == 2) {  // a rank that left is not waited for
      group.destroy();
      return left.set_value();
    }
    EXPECT_TRUE(in_time(left.get_future()));
    std::string text;
    EXPECT_EQ(failure_of([&group] { group.shrink(std::chrono::milliseconds(300)); }, &text), Status::kTimeout);
    // The time left when the wait began.
    EXPECT_TRUE(
        std::regex_search(text, std::regex("rank 1 did not come within ([0-9]|[1-9][0-9]|[12][0-9]{2}|300) ms")))
        << text;
    over.set_value();
  });
}

}  // namespace
}  // namespace backplane::test
