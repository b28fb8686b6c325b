// SPDX-License-Identifier: Apache-2.0
//
// Groups release all resources when they end.
#include "plugins/zmq/support.hpp"
#include "support/resources.hpp"

namespace backplane::test {
namespace {

void one_group(bool busy) {
  in_world(2, [busy](Rank& rank) {
    if (!busy) return;
    if (rank.rank() == 0) {
      EXPECT_EQ(rank.send(1, 1, pattern(10, 1)), BP_OK);
    } else {
      EXPECT_EQ(rank.recv(0, 1, 10).bytes, pattern(10, 1));
    }
  });
}

TEST(ZmqLife, TwoHundredGroupsLeaveNoDescriptorAndNoThread) {
  one_group(true);
  const Resources before;
  for (int i = 0; i < 200; ++i) one_group(i % 2 == 0);
  EXPECT_TRUE(before.are_restored());
}

TEST(ZmqLife, AnAbortedGroupLeavesNoDescriptorAndNoThread) {
  one_group(true);
  const Resources before;
  for (int i = 0; i < 5; ++i) {
    in_world(2, [](Rank& rank) { rank.abort(BP_CANCELLED, "over"); });
  }
  EXPECT_TRUE(before.are_restored());
}

TEST(ZmqLife, NoConnectionBeforeTheFirstUse) {
  MemoryHost host;
  const size_t before = entries_of("/proc/self/fd");
  Rank first(host, 0, 1000);
  const size_t one = entries_of("/proc/self/fd") - before;
  EXPECT_GT(one, 0U);
  Rank second(host, 1, 1000);
  EXPECT_EQ(entries_of("/proc/self/fd") - before, 2 * one);
}

// A message whose send is done arrives even if the sender destroys the group at once.
TEST(ZmqLife, DestroyDeliversWhatWasSent) {
  MemoryHost host;
  Rank receiver(host, 0, 2);
  std::thread([&host] {
    Rank sender(host, 1, 2);
    for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(sender.send(0, 1, pattern(5000, i)), BP_OK);
  }).join();
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(receiver.recv(1, 1, 5000).bytes, pattern(5000, i)) << i;
  EXPECT_EQ(receiver.recv(1, 1, 1).status, BP_PEER_LOST);
}

TEST(ZmqLife, AWorldOfOne) {
  MemoryHost host;
  Rank rank(host, 0, 1);
  EXPECT_EQ(rank.send(0, 1, pattern(10, 1)), BP_OK);
  EXPECT_EQ(rank.recv(0, 1, 10).bytes, pattern(10, 1));
}

}  // namespace
}  // namespace backplane::test
