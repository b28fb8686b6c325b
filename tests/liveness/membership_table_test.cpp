// SPDX-License-Identifier: Apache-2.0
#include "liveness/membership_table.hpp"

#include <vector>

#include "store/store_fixture.hpp"

namespace backplane::core {
namespace {

class MembershipTableTest : public testing::Test {
 protected:
  // The notices that a client got, in order.
  std::vector<std::string> notices(ClientId client) { return std::exchange(notices_[client], {}); }

  std::map<ClientId, std::vector<std::string>> notices_;
  MembershipTable members_{[this](ClientId client, const std::string& scope, const Loss& loss) {
    notices_[client].push_back(scope + ": " + loss.text);
  }};
};

TEST_F(MembershipTableTest, NotifiesTheScopeOfALoss) {
  EXPECT_TRUE(members_.enroll(1, "a", 0, "host, pid 1"));
  EXPECT_TRUE(members_.enroll(2, "a", 1, "host, pid 2"));
  EXPECT_TRUE(members_.enroll(3, "b", 0, "host, pid 3"));
  members_.lose(2, "its process ended");
  members_.forget(2);
  const std::vector<std::string> news = {"a: rank 1 (host, pid 2) is lost: its process ended"};
  EXPECT_EQ(notices(1), news);
  EXPECT_EQ(notices(3), std::vector<std::string>());
  EXPECT_EQ(members_.absences("a"), (Absences{{1, Absence::kLost}}));
  EXPECT_TRUE(members_.enroll(4, "a", 2, "host, pid 4"));
  EXPECT_EQ(notices(4), news);                              // a later client gets the notice
  EXPECT_FALSE(members_.enroll(5, "a", 1, "host, pid 5"));  // a lost rank stays lost
}

TEST_F(MembershipTableTest, LeavingIsNotALoss) {
  members_.enroll(1, "a", 0, "one");
  members_.enroll(2, "a", 1, "two");
  members_.withdraw(2, "a", 1);
  members_.lose(2, "its process ended");
  members_.forget(2);
  EXPECT_EQ(notices(1), std::vector<std::string>());
  EXPECT_EQ(members_.absences("a"), (Absences{{1, Absence::kLeft}}));
  EXPECT_TRUE(members_.enroll(3, "a", 1, "three"));  // a rank that left may return
  EXPECT_TRUE(members_.holds(3));
  members_.leave(3);
  EXPECT_FALSE(members_.holds(3));
  members_.lose(3, "its process ended");
  EXPECT_EQ(notices(1), std::vector<std::string>());
}

TEST_F(MembershipTableTest, ARankThatEndsBeforeItEnrollsIsLost) {
  EXPECT_TRUE(members_.enroll(1, "a", 0, "one"));
  members_.report_end("a", 1, "host, pid 2", "its process exited with code 0 before it joined");
  members_.report_end("a", 1, "host, pid 2", "again");
  const std::vector<std::string> news = {
      "a: rank 1 (host, pid 2) is lost: its process exited with code 0 before it joined"};
  EXPECT_EQ(notices(1), news);
  EXPECT_EQ(members_.absences("a"), (Absences{{1, Absence::kLost}}));
  EXPECT_TRUE(members_.enroll(2, "a", 2, "two"));
  EXPECT_EQ(notices(2), news);
  members_.report_end("a", 2, "two", "has enrolled");  // its connection reports its end
  members_.withdraw(2, "a", 2);
  members_.report_end("a", 2, "two", "has left");
  EXPECT_EQ(notices(1), std::vector<std::string>());
  EXPECT_THROW(members_.report_end("a", -1, "none", "no rank"), Error);
  EXPECT_THROW(members_.report_end("a", 5, "\x01", "no text"), Error);
}

TEST_F(MembershipTableTest, TheFirstHolderOfARankKeepsIt) {
  EXPECT_TRUE(members_.enroll(1, "a", 0, "one"));
  EXPECT_FALSE(members_.enroll(2, "a", 0, "two"));
  members_.lose(2, "its process ended");
  EXPECT_EQ(members_.absences("a"), Absences());
  members_.withdraw(2, "a", 0);
  EXPECT_EQ(members_.absences("a"), Absences());
  EXPECT_TRUE(members_.holds(1));
}

TEST_F(MembershipTableTest, OneClientMayHoldSeveralRanks) {
  for (const int32_t rank : {0, 1, 2}) EXPECT_TRUE(members_.enroll(1, "a", rank, "one"));
  members_.enroll(2, "a", 3, "two");
  members_.withdraw(1, "a", 1);
  members_.lose(1, "its process ended");
  EXPECT_EQ(notices(2), (std::vector<std::string>{"a: rank 0 (one) is lost: its process ended",
                                                  "a: rank 2 (one) is lost: its process ended"}));
}

TEST_F(MembershipTableTest, ErasesMembersThatLeft) {
  for (ClientId client = 1; client <= 3; ++client) members_.enroll(client, "a", static_cast<int32_t>(client), "x");
  for (ClientId client = 1; client <= 3; ++client) members_.withdraw(client, "a", static_cast<int32_t>(client));
  EXPECT_EQ(members_.entries(), 0U);
  EXPECT_EQ(members_.absences("a"), Absences());
  members_.enroll(4, "b", -1, "an observer");
  members_.forget(4);
  members_.forget(4);
  members_.withdraw(4, "b", 0);
  EXPECT_EQ(members_.entries(), 0U);
}

TEST_F(MembershipTableTest, LimitsHold) {
  EXPECT_ERROR(BP_INVALID, "the scope has 5000 bytes", members_.enroll(1, std::string(5000, 's'), 0, "x"));
  EXPECT_ERROR(BP_INVALID, "the identity has 600 bytes", members_.enroll(1, "a", 0, std::string(600, 'x')));
  EXPECT_ERROR(BP_INVALID, "not printable", members_.enroll(1, "a", 0, "two\nlines"));
  EXPECT_ERROR(BP_INVALID, "rank -2", members_.enroll(1, "a", -2, "x"));
  members_.enroll(1, "a", 0, std::string(kMaxIdentitySize, 'x'));
  members_.enroll(2, "a", 1, "y");
  members_.lose(1, std::string(5000, 'r'));
  EXPECT_LE(notices(2).front().size(), kMaxNoticeSize);
}

}  // namespace
}  // namespace backplane::core
