// SPDX-License-Identifier: Apache-2.0
//
// Messages of all sizes and kinds arrive unchanged and in order.
#include "plugins/zmq/support.hpp"

namespace backplane::test {
namespace {

const std::vector<size_t> kSizes = {0,    1,     3,     7,     33,     255,    256,     257,           4095,   4096,
                                    4097, 65535, 65536, 65537, 262144, 262145, 1 << 20, (1 << 20) + 1, 3 << 20};

class ZmqWorld : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ZmqWorld, testing::Values(2, 3, 4, 5));

TEST_P(ZmqWorld, RingOfAllSizes) {
  const int32_t world_size = GetParam();
  in_world(world_size, [world_size](Rank& rank) {
    const int32_t next = (rank.rank() + 1) % world_size;
    const int32_t previous = (rank.rank() + world_size - 1) % world_size;
    for (const size_t size : kSizes) {
      const Bytes bytes = pattern(size, static_cast<uint32_t>(rank.rank()));
      bp_work* const sending = rank.start(Rank::make_send(next, size, bytes));
      const Received received = rank.recv(previous, size, size);
      EXPECT_EQ(received.status, BP_OK) << received.text;
      EXPECT_EQ(received.size, size);
      EXPECT_EQ(received.source, previous);
      EXPECT_EQ(received.bytes, pattern(size, static_cast<uint32_t>(previous)));
      EXPECT_EQ(rank.finish(sending), BP_OK);
    }
  });
}

TEST_P(ZmqWorld, AnySourceReceivesFromAllRanks) {
  const int32_t world_size = GetParam();
  in_world(world_size, [world_size](Rank& rank) {
    if (rank.rank() != 0) {
      for (const size_t size : {8, 100000}) {
        EXPECT_EQ(rank.send(0, size, pattern(size, static_cast<uint32_t>(rank.rank()))), BP_OK) << rank.error();
      }
      return;
    }
    for (const size_t size : {100000, 8}) {
      std::vector<bool> seen(static_cast<size_t>(world_size));
      for (int32_t i = 1; i < world_size; ++i) {
        const Received received = rank.recv(BP_ANY_SOURCE, size, size);
        ASSERT_EQ(received.status, BP_OK) << received.text;
        EXPECT_EQ(received.bytes, pattern(size, static_cast<uint32_t>(received.source)));
        EXPECT_FALSE(seen[static_cast<size_t>(received.source)]);
        seen[static_cast<size_t>(received.source)] = true;
      }
    }
  });
}

TEST(ZmqMessages, OrderHoldsWithinPeerAndTagAcrossSizes) {
  in_world(2, [](Rank& rank) {
    // Eager and announced messages alternate.
    constexpr uint32_t kCount = 60;
    const auto size = [](uint32_t i) -> size_t { return i % 3 == 0 ? 100000 + i : i; };
    if (rank.rank() == 0) {
      std::vector<Bytes> messages;
      std::vector<bp_work*> works;
      for (uint32_t i = 0; i < kCount; ++i) messages.push_back(pattern(size(i), i));
      for (const Bytes& message : messages) works.push_back(rank.start(Rank::make_send(1, 5, message)));
      for (bp_work* work : works) EXPECT_EQ(rank.finish(work), BP_OK);
    } else {
      for (uint32_t i = 0; i < kCount; ++i) {
        Received received = rank.recv(i % 2 == 0 ? 0 : BP_ANY_SOURCE, 5, 200000);
        ASSERT_EQ(received.status, BP_OK) << received.text;
        received.bytes.resize(received.size);
        EXPECT_EQ(received.bytes, pattern(size(i), i)) << i;
      }
    }
  });
}

TEST(ZmqMessages, TagsMatchOutOfOrderIn64Bits) {
  in_world(2, [](Rank& rank) {
    const std::vector<uint64_t> tags = {0, 1, UINT64_C(1) << 32, BP_TAG_INTERNAL | 1, UINT64_MAX - 1};
    const auto bytes = [](uint64_t tag, size_t size) { return pattern(size, static_cast<uint32_t>(tag % 251)); };
    for (const size_t size : {10, 70000}) {
      if (rank.rank() == 0) {
        std::vector<Bytes> messages;
        std::vector<bp_work*> works;
        for (const uint64_t tag : tags) messages.push_back(bytes(tag, size));
        for (size_t i = 0; i < tags.size(); ++i) works.push_back(rank.start(Rank::make_send(1, tags[i], messages[i])));
        for (bp_work* work : works) EXPECT_EQ(rank.finish(work), BP_OK);
      } else {
        for (auto tag = tags.rbegin(); tag != tags.rend(); ++tag) {
          EXPECT_EQ(rank.recv(0, *tag, size).bytes, bytes(*tag, size));
        }
      }
    }
  });
}

TEST(ZmqMessages, ToSelf) {
  in_world(2, [](Rank& rank) {
    const int32_t self = rank.rank();
    EXPECT_EQ(rank.send(self, 1, pattern(100, 1)), BP_OK);  // eager: before its receive
    EXPECT_EQ(rank.recv(self, 1, 100).bytes, pattern(100, 1));
    const Bytes large = pattern(2 << 20, 2);
    bp_work* const sending = rank.start(Rank::make_send(self, 2, large));
    EXPECT_NE(sending, nullptr);
    EXPECT_EQ(rank.recv(BP_ANY_SOURCE, 2, large.size()).bytes, large);
    EXPECT_EQ(rank.finish(sending), BP_OK);
    Bytes target(large.size());
    bp_work* const receiving = rank.start(Rank::make_recv(self, 3, target));
    EXPECT_EQ(rank.send(self, 3, large), BP_OK);
    EXPECT_EQ(rank.finish(receiving), BP_OK);
    EXPECT_EQ(target, large);
  });
}

TEST(ZmqMessages, AMessageTooLongFailsItsReceiveAndTheNextOneArrives) {
  in_world(2, [](Rank& rank) {
    for (const size_t size : {1000, 500000, 5000000}) {
      if (rank.rank() == 0) {
        EXPECT_EQ(rank.send(1, 1, pattern(size, 1)), BP_OK) << rank.error();
        EXPECT_EQ(rank.send(1, 1, pattern(size, 2)), BP_OK) << rank.error();
      } else {
        const Received cut = rank.recv(0, 1, size - 1);
        EXPECT_EQ(cut.status, BP_INVALID);
        EXPECT_EQ(cut.size, size);
        EXPECT_EQ(cut.source, 0);
        EXPECT_NE(cut.text.find("does not fit"), std::string::npos) << cut.text;
        EXPECT_EQ(rank.recv(0, 1, size).bytes, pattern(size, 2));
      }
    }
  });
}

// The receiver's goodbye may arrive before libzmq releases the sender's buffer.
TEST(ZmqMessages, AReceivedMessageIsSentEvenIfTheReceiverLeavesAtOnce) {
  for (int round = 0; round < 30; ++round) {
    in_world(2, [](Rank& rank) {
      constexpr size_t kSize = 300000;
      if (rank.rank() == 0) {
        EXPECT_EQ(rank.send(1, 1, pattern(kSize, 1)), BP_OK) << rank.error();
      } else {
        EXPECT_EQ(rank.recv(0, 1, kSize).status, BP_OK);
      }
    });
  }
}

TEST(ZmqMessages, BothDirectionsLargeAtOnce) {
  in_world(2, [](Rank& rank) {
    const int32_t other = 1 - rank.rank();
    const Bytes bytes = pattern(20 << 20, static_cast<uint32_t>(rank.rank()));
    Bytes target(bytes.size());
    bp_work* const receiving = rank.start(Rank::make_recv(other, 0, target));
    bp_work* const sending = rank.start(Rank::make_send(other, 0, bytes));
    EXPECT_EQ(rank.finish(sending), BP_OK);
    EXPECT_EQ(rank.finish(receiving), BP_OK);
    EXPECT_EQ(target, pattern(bytes.size(), static_cast<uint32_t>(other)));
  });
}

// More pieces than libzmq's queues hold: none is dropped and no thread blocks.
TEST(ZmqMessages, SmallQueuesInLibzmqDropNothing) {
  in_world(2,
           [](Rank& rank) {
             const size_t size = 3 << 20;
             for (uint32_t round = 0; round < 3; ++round) {
               if (rank.rank() == 0) {
                 for (uint32_t i = 0; i < 500; ++i) EXPECT_EQ(rank.send(1, 2, pattern(64, i)), BP_OK);
                 EXPECT_EQ(rank.send(1, 1, pattern(size, round)), BP_OK) << rank.error();
               } else {
                 EXPECT_EQ(rank.recv(0, 1, size).bytes, pattern(size, round));
                 for (uint32_t i = 0; i < 500; ++i) EXPECT_EQ(rank.recv(0, 2, 64).bytes, pattern(64, i));
               }
             }
           },
           {{"sndhwm", "2"}, {"rcvhwm", "2"}, {"chunk_size", "8192"}});
}

TEST(ZmqMessages, FloodOfUnexpectedSmallOnes) {
  in_world(2, [](Rank& rank) {
    constexpr uint32_t kCount = 20000;
    if (rank.rank() == 0) {
      for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(rank.send(1, i % 7, pattern(24, i)), BP_OK) << rank.error();
      EXPECT_EQ(rank.send(1, 1000, {}), BP_OK);
    } else {
      EXPECT_EQ(rank.recv(0, 1000, 0).status, BP_OK);  // all of them have arrived
      for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(rank.recv(0, i % 7, 24).bytes, pattern(24, i));
    }
  });
}

// Large messages stay with the sender until they are received.
TEST(ZmqMessages, FloodOfUnexpectedLargeOnes) {
  in_world(2, [](Rank& rank) {
    constexpr uint32_t kCount = 20;
    const size_t size = 3 << 20;
    if (rank.rank() == 0) {
      std::vector<Bytes> messages;
      std::vector<bp_work*> works;
      for (uint32_t i = 0; i < kCount; ++i) messages.push_back(pattern(size, i));
      for (const Bytes& message : messages) works.push_back(rank.start(Rank::make_send(1, 4, message)));
      EXPECT_EQ(rank.send(1, 5, {}), BP_OK);
      EXPECT_EQ(rank.finish(works.front(), 0), BP_AGAIN);
      EXPECT_EQ(rank.send(1, 6, {}), BP_OK);
      for (bp_work* work : works) EXPECT_EQ(rank.finish(work), BP_OK);
    } else {
      EXPECT_EQ(rank.recv(0, 6, 0).status, BP_OK);
      for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(rank.recv(0, 4, size).bytes, pattern(size, i));
      EXPECT_EQ(rank.recv(0, 5, 0).status, BP_OK);
    }
  });
}

// Beyond the window, small messages stay with their sender.
TEST(ZmqMessages, TheWindowBoundsUnreceivedMessages) {
  in_world(2,
           [](Rank& rank) {
             const size_t size = 4096;
             constexpr uint32_t kCount = 100;  // six windows
             std::vector<Bytes> messages;
             for (uint32_t i = 0; i < kCount; ++i) messages.push_back(pattern(size, i));
             if (rank.rank() == 0) {
               std::vector<bp_work*> works;
               for (const Bytes& message : messages) works.push_back(rank.start(Rank::make_send(1, 0, message)));
               EXPECT_EQ(rank.finish(works.back(), 0), BP_AGAIN);
               EXPECT_EQ(rank.send(1, 9, {}), BP_OK);
               for (bp_work* work : works) EXPECT_EQ(rank.finish(work), BP_OK);
             } else {
               EXPECT_EQ(rank.recv(0, 9, 0).status, BP_OK);  // the test of works.back() is over
               for (const Bytes& message : messages) ASSERT_EQ(rank.recv(0, 0, size).bytes, message);
             }
           },
           {{"eager_window", "65536"}});
}

TEST(ZmqMessages, ManyThreadsPerRank) {
  in_world(2, [](Rank& rank) {
    on_ranks(4, [&rank](int32_t thread) {
      const auto tag = static_cast<uint64_t>(thread);
      for (uint32_t i = 0; i < 200; ++i) {
        const size_t size = i % 20 == 0 ? 80000 : 16;
        if (rank.rank() == 0) {
          EXPECT_EQ(rank.recv(1, tag, size, i % 2).bytes, pattern(size, i));
        } else {
          Bytes bytes = pattern(size, i);
          bp_op op = Rank::make_send(0, tag, bytes);
          op.flags = i % 2;
          EXPECT_EQ(rank.agent().run(op), BP_OK);
        }
      }
    });
  });
}

}  // namespace
}  // namespace backplane::test
