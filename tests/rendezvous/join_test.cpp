// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "liveness/process_identity.hpp"
#include "rendezvous/rendezvous.hpp"
#include "store/store_fixture.hpp"

namespace backplane::core {
namespace {

std::string who(int32_t rank) { return fmt::format("host{}, pid {}", rank, 100 + rank); }

// Joins on a separate thread. Returns the error; its status is BP_OK on success.
std::future<Error> start_join(const std::shared_ptr<Store>& store, int32_t rank, int32_t world_size,
                              Deadline deadline) {
  return std::async(std::launch::async, [store, rank, world_size, deadline] {
    try {
      join(*store, rank, world_size, who(rank), deadline);
      return Error(BP_OK, "");
    } catch (const Error& e) {
      return e;
    }
  });
}

TEST(Join, EndsWhenAllRanksHaveJoined) {
  const auto store = make_inproc_store();
  std::vector<std::future<Error>> ranks;
  for (int32_t rank = 0; rank < 8; ++rank) ranks.push_back(start_join(store, rank, 8, soon()));
  for (auto& rank : ranks) EXPECT_EQ(rank.get().status(), BP_OK);
  join(*make_inproc_store(), 0, 1, who(0), soon());
}

TEST(Join, NamesMissingRanks) {
  const auto store = make_inproc_store();
  auto two = start_join(store, 2, 4, soon());
  store->wait({"bp/join/rank/2"}, soon());
  const Error error = start_join(store, 0, 4, in_ms(20)).get();
  EXPECT_EQ(error.status(), BP_TIMEOUT);
  const std::string text = error.what();
  EXPECT_EQ(text.find("ranks 1 and 3 of 4 did not join within "), 0U) << text;
  EXPECT_NE(text.find("(at the store of this process); look at their output"), std::string::npos) << text;
  store->interrupt(BP_CANCELLED, "enough");
  EXPECT_EQ(two.get().status(), BP_CANCELLED);
}

// All ranks of a large job time out at once: one looks for the missing ranks, and the others read its list.
TEST(Join, OneRankLooksForTheMissingRanks) {
  const auto store = make_inproc_store();
  const auto rank_0 = start_join(store, 0, 700, in_ms(20)).get();
  EXPECT_NE(std::string(rank_0.what()).find("ranks 1, 2, 3, 4"), std::string::npos) << rank_0.what();
  store->set("bp/join/missing/2", "699", soon());  // as if another rank had looked
  store->set("bp/join/missing/2/asked", "1", soon());
  const auto rank_1 = start_join(store, 1, 700, in_ms(20)).get();
  EXPECT_EQ(std::string(rank_1.what()).find("rank 699 of 700 did not join within "), 0U) << rank_1.what();
}

TEST(Join, CutsLongLists) {
  const auto store = make_inproc_store();
  EXPECT_ERROR(BP_TIMEOUT, "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and others of 1000",
               join(*store, 0, 1000, who(0), in_ms(1)));
  EXPECT_ERROR(BP_TIMEOUT, "rank 1 of 2 did not", join(*make_inproc_store(), 0, 2, who(0), in_ms(1)));
}

TEST(Join, NamesBothThatClaimARank) {
  const auto store = make_inproc_store();
  auto first = start_join(store, 1, 3, soon());
  while (!store->check({"bp/join/rank/1"}, soon())) std::this_thread::yield();
  EXPECT_ERROR(BP_INVALID, "rank 1 is claimed by two processes: host1, pid 101 and me, pid 5",
               join(*store, 1, 3, "me, pid 5", soon()));
  const Error told = first.get();  // nor does the first wait in vain
  EXPECT_EQ(told.status(), BP_INVALID);
  EXPECT_EQ(std::string(told.what()).find("rank 1 is claimed by two processes: host1, pid 101 and me, pid 5"), 0U)
      << told.what();
}

TEST(Join, TheSameProcessMayNotJoinTwice) {
  const auto store = make_inproc_store();
  join(*store, 0, 1, who(0), soon());
  EXPECT_ERROR(BP_INVALID, "claimed by two", join(*store, 0, 1, who(0), soon()));
}

TEST(Join, ReportsDifferentWorldSizesOnBothSides) {
  const auto store = make_inproc_store();
  auto first = start_join(store, 0, 4, soon());
  while (!store->check({"bp/join/world"}, soon())) std::this_thread::yield();
  auto second = start_join(store, 1, 8, soon());
  for (auto* rank : {&first, &second}) {
    const Error error = rank->get();
    EXPECT_EQ(error.status(), BP_INVALID);
    EXPECT_NE(
        std::string(error.what()).find("rank 0 (host0, pid 100) was started with 4, rank 1 (host1, pid 101) with 8"),
        std::string::npos)
        << error.what();
  }
}

TEST(Join, ChecksItsArguments) {
  const auto store = make_inproc_store();
  EXPECT_ERROR(BP_INVALID, "rank is 4, but the world size is 4; ranks go from 0 to 3",
               join(*store, 4, 4, who(4), soon()));
  EXPECT_ERROR(BP_INVALID, "rank is -1", join(*store, -1, 4, who(0), soon()));
  EXPECT_ERROR(BP_INVALID, "world size is 0", join(*store, 0, 0, who(0), soon()));
}

TEST(Join, AnInterruptEndsIt) {
  const auto store = make_inproc_store();
  auto waiting = start_join(store, 0, 2, soon());
  store->interrupt(BP_CANCELLED, "changed my mind");
  const Error told = waiting.get();
  EXPECT_EQ(told.status(), BP_CANCELLED);
  EXPECT_STREQ(told.what(), "changed my mind");
}

TEST(Join, AStaleFileIsNamed) {
  const ScopedDirectory directory;
  const std::string path = directory.file("store");
  const pid_t pid = ::fork();
  if (pid == 0) {
    join(*make_file_store(path), 0, 1, process_identity(), soon());
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0) << "the earlier run did not join";
  const auto store = make_file_store(path);
  EXPECT_ERROR(BP_INVALID, "the first has ended, so the file is from an earlier run; remove " + path,
               join(*store, 0, 1, process_identity(), soon()));
}

}  // namespace
}  // namespace backplane::core
