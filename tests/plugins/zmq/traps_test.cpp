// SPDX-License-Identifier: Apache-2.0
//
// Known defects of other backends over libzmq, one test each.
#include <chrono>
#include <set>

#include "plugins/zmq/support.hpp"

namespace backplane::test {
namespace {

// A PUB socket does not wait for its subscribers and loses the first messages.
TEST(ZmqTraps, PubSlowJoinerLosesNoFirstMessage) {
  for (int i = 0; i < 100; ++i) {
    in_world(3, [](Rank& rank) {
      if (rank.rank() == 0) {
        for (const int32_t peer : {1, 2}) ASSERT_EQ(rank.send(peer, 0, pattern(9, 1)), BP_OK) << rank.error();
      } else {
        ASSERT_EQ(rank.recv(0, 0, 9).bytes, pattern(9, 1));
      }
    });
  }
}

// A REQ socket cannot receive twice in a row.
TEST(ZmqTraps, ReqTwiceReceivesTwice) {
  in_world(2, [](Rank& rank) {
    for (uint32_t i = 0; i < 10; ++i) {
      if (rank.rank() == 0) {
        EXPECT_EQ(rank.send(1, 0, pattern(9, i)), BP_OK);
      } else {
        EXPECT_EQ(rank.recv(0, 0, 9).bytes, pattern(9, i));
      }
    }
  });
}

TEST(ZmqTraps, TimeoutIsNotIgnored) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(rank.recv(1, 0, 1, BP_OP_SYNC, kSecond / 20).status, BP_TIMEOUT);
  EXPECT_EQ(rank.send(1, 0, pattern(1, 1), BP_OP_SYNC, kSecond / 20), BP_TIMEOUT);  // rank 1 has not joined
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));    // less than the default
  MemoryHost empty;
  const std::string text = start_failure(empty, 1, 2, {}, kSecond / 20);
  EXPECT_NE(text.find("rank 0 has not joined the group"), std::string::npos) << text;
}

// Ranks that disagreed about the number of an operation ended the server's thread, and all ranks hung.
TEST(ZmqTraps, SequenceMismatchKillsNoServerThread) {
  in_world(2, [](Rank& rank) {
    if (rank.rank() == 0) {
      EXPECT_EQ(rank.send(1, 7, pattern(9, 7)), BP_OK);  // never received
      EXPECT_EQ(rank.recv(1, 1, 0).status, BP_OK);
      EXPECT_EQ(rank.send(1, 8, pattern(9, 8)), BP_OK);
    } else {
      EXPECT_EQ(rank.recv(0, 9, 9, BP_OP_SYNC, kSecond / 20).status, BP_TIMEOUT);
      EXPECT_EQ(rank.send(0, 1, {}), BP_OK);
      EXPECT_EQ(rank.recv(0, 8, 9).bytes, pattern(9, 8));
    }
  });
}

TEST(ZmqTraps, FixedPortsAreNotUsed) {
  MemoryHost first;
  MemoryHost second;
  Rank a(first, 0, 2);
  Rank b(first, 1, 2);
  Rank c(second, 0, 1);
  EXPECT_EQ((std::set<std::string>{stored(first, "zmq/0"), stored(first, "zmq/1"), stored(second, "zmq/0")}.size()),
            3u);
}

TEST(ZmqTraps, WildcardBindIsRefusedAndLoopbackTheDefault) {
  MemoryHost host;
  Rank rank(host, 0, 1);
  EXPECT_TRUE(stored(host, "zmq/0").starts_with("tcp://127.0.0.1:")) << stored(host, "zmq/0");
  for (const char* address : {"0.0.0.0", "::"}) {
    const std::string text = start_failure(host, 0, 1, {{"address", address}});
    EXPECT_NE(text.find("would listen on every interface"), std::string::npos) << address << ": " << text;
  }
  const std::string text = start_failure(host, 0, 1, {{"address", "*"}});
  EXPECT_NE(text.find("is not an IPv4 or IPv6 address"), std::string::npos) << text;
}

// Received bytes were unpickled, and None could not be broadcast. Here messages are bytes.
TEST(ZmqTraps, PickleAndNoneAreBytesLikeOthers) {
  in_world(2, [](Rank& rank) {
    const std::string code = "cos\nsystem\n(S'exit 1'\ntR.";
    const Bytes pickled(code.begin(), code.end());
    if (rank.rank() == 0) {
      EXPECT_EQ(rank.send(1, 0, pickled), BP_OK);
      EXPECT_EQ(rank.send(1, 0, {}), BP_OK);
    } else {
      EXPECT_EQ(rank.recv(0, 0, pickled.size()).bytes, pickled);
      EXPECT_EQ(rank.recv(0, 0, 0).status, BP_OK);
    }
  });
}

}  // namespace
}  // namespace backplane::test
