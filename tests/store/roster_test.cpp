// SPDX-License-Identifier: Apache-2.0
#include "store/roster.hpp"

#include <vector>

#include "store_fixture.hpp"

namespace backplane::core {
namespace {

class RosterTest : public testing::Test {
 protected:
  // What a client was told, in order.
  std::vector<std::string> told(ClientId client) { return std::exchange(told_[client], {}); }

  std::map<ClientId, std::vector<std::string>> told_;
  Roster roster_{[this](ClientId client, const Push& push) { told_[client].push_back(push.scope + ": " + push.text); }};
};

TEST_F(RosterTest, ALossIsToldToItsScope) {
  EXPECT_TRUE(roster_.enroll(1, "a", 0, "host, pid 1"));
  EXPECT_TRUE(roster_.enroll(2, "a", 1, "host, pid 2"));
  EXPECT_TRUE(roster_.enroll(3, "b", 0, "host, pid 3"));
  roster_.lose(2, "its process ended");
  roster_.forget(2);
  const std::vector<std::string> news = {"a: rank 1 (host, pid 2) is lost: its process ended"};
  EXPECT_EQ(told(1), news);
  EXPECT_EQ(told(3), std::vector<std::string>());
  EXPECT_EQ(roster_.fates("a"), (Fates{{1, Fate::kLost}}));
  EXPECT_TRUE(roster_.enroll(4, "a", 2, "host, pid 4"));
  EXPECT_EQ(told(4), news);                                // who comes later is told, too
  EXPECT_FALSE(roster_.enroll(5, "a", 1, "host, pid 5"));  // who was given up stays so
}

TEST_F(RosterTest, WhoDepartsIsNotLost) {
  roster_.enroll(1, "a", 0, "one");
  roster_.enroll(2, "a", 1, "two");
  roster_.withdraw(2, "a", 1);
  roster_.lose(2, "its process ended");
  roster_.forget(2);
  EXPECT_EQ(told(1), std::vector<std::string>());
  EXPECT_EQ(roster_.fates("a"), (Fates{{1, Fate::kDeparted}}));
  EXPECT_TRUE(roster_.enroll(3, "a", 1, "three"));  // and may come back
  EXPECT_TRUE(roster_.holds(3));
  roster_.goodbye(3);
  EXPECT_FALSE(roster_.holds(3));
  roster_.lose(3, "its process ended");
  EXPECT_EQ(told(1), std::vector<std::string>());
}

TEST_F(RosterTest, TheFirstHolderOfARankCounts) {
  EXPECT_TRUE(roster_.enroll(1, "a", 0, "one"));
  EXPECT_FALSE(roster_.enroll(2, "a", 0, "two"));
  roster_.lose(2, "its process ended");
  EXPECT_EQ(roster_.fates("a"), Fates());
  roster_.withdraw(2, "a", 0);
  EXPECT_EQ(roster_.fates("a"), Fates());
  EXPECT_TRUE(roster_.holds(1));
}

TEST_F(RosterTest, OneClientMayHoldSeveralRanks) {
  for (const int32_t rank : {0, 1, 2}) EXPECT_TRUE(roster_.enroll(1, "a", rank, "one"));
  roster_.enroll(2, "a", 3, "two");
  roster_.withdraw(1, "a", 1);
  roster_.lose(1, "its process ended");
  EXPECT_EQ(told(2), (std::vector<std::string>{"a: rank 0 (one) is lost: its process ended",
                                               "a: rank 2 (one) is lost: its process ended"}));
}

TEST_F(RosterTest, NothingIsKeptOfThoseWhoDeparted) {
  for (ClientId client = 1; client <= 3; ++client) roster_.enroll(client, "a", static_cast<int32_t>(client), "x");
  for (ClientId client = 1; client <= 3; ++client) roster_.withdraw(client, "a", static_cast<int32_t>(client));
  EXPECT_EQ(roster_.entries(), 0U);
  EXPECT_EQ(roster_.fates("a"), Fates());
  roster_.enroll(4, "b", -1, "a watcher");
  roster_.forget(4);
  roster_.forget(4);
  roster_.withdraw(4, "b", 0);
  EXPECT_EQ(roster_.entries(), 0U);
}

TEST_F(RosterTest, LimitsHold) {
  EXPECT_ERROR(BP_INVALID, "a scope of 5000 bytes", roster_.enroll(1, std::string(5000, 's'), 0, "x"));
  EXPECT_ERROR(BP_INVALID, "an identity of 600 bytes", roster_.enroll(1, "a", 0, std::string(600, 'x')));
  EXPECT_ERROR(BP_INVALID, "not printable", roster_.enroll(1, "a", 0, "two\nlines"));
  EXPECT_ERROR(BP_INVALID, "rank -2", roster_.enroll(1, "a", -2, "x"));
  roster_.enroll(1, "a", 0, std::string(kMaxIdentitySize, 'x'));
  roster_.enroll(2, "a", 1, "y");
  roster_.lose(1, std::string(5000, 'r'));
  EXPECT_LE(told(2).front().size(), kMaxNoticeSize);
}

}  // namespace
}  // namespace backplane::core
