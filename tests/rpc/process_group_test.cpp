// SPDX-License-Identifier: Apache-2.0
//
// The agent over a process group by itself: what one refuses, the other hears of.
#include "rpc/sides.hpp"

namespace backplane::test {
namespace {

TEST(ProcessGroupAgentTest, WhoRefusesAMessageTellsItsSender) {
  const Sides sides(builtin("process_group"), {}, 50000);
  sides.zero->send(1, 7, 100000);  // in parts
  sides.zero->send(1, 8, 2000000);
  sides.zero->send(1, 9, 1000);
  for (const uint64_t id : {7, 8}) {
    EXPECT_EQ(sides.zero->failure(id),
              "its receiver refused it: the message is larger than this worker takes (max_message_bytes)");
  }
  sides.zero->send(1, 10, 40000);
  EXPECT_TRUE(sides.one->has_received(2));
}

}  // namespace
}  // namespace backplane::test
