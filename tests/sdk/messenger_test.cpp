// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "sdk/failure_of.hpp"
#include "sdk/messenger_wire.hpp"

namespace backplane::sdk {
namespace {

TEST(MessengerTest, ASmallMessageIsDoneAtOnceAndArrives) {
  Wire wire(2);
  const Data data = numbers(100);
  Data got(100);
  EXPECT_EQ(send(wire[0], 1, 5, data), nullptr);
  bp_result result = {sizeof result, -1, 0, 0};
  auto received = recv(wire[1], BP_ANY_SOURCE, 5, got, &result);
  EXPECT_EQ(end_of(received), BP_AGAIN);
  wire.settle();
  EXPECT_EQ(end_of(received), BP_OK);
  EXPECT_EQ(got, data);
  EXPECT_EQ(result.source, 0);
  EXPECT_EQ(result.bytes, 400U);
}

TEST(MessengerTest, ALargeMessageWaitsForItsReceive) {
  Wire wire(2);
  const Data data = numbers(kLarge);
  Data got(kLarge);
  auto sent = send(wire[0], 1, 5, data);
  wire.settle();
  EXPECT_EQ(end_of(sent), BP_AGAIN);
  auto received = recv(wire[1], 0, 5, got);
  wire.settle();
  EXPECT_EQ(end_of(sent), BP_OK);
  EXPECT_EQ(end_of(received), BP_OK);
  EXPECT_EQ(got, data);
}

TEST(MessengerTest, SmallAndLargeKeepTheirOrder) {
  Wire wire(2);
  const Data small = numbers(1, 1), large = numbers(kLarge, 2);
  auto first = send(wire[0], 1, 5, large);
  auto second = send(wire[0], 1, 5, small);
  wire.settle();
  Data one(kLarge), two(1);
  auto got_first = recv(wire[1], 0, 5, one);
  auto got_second = recv(wire[1], 0, 5, two);
  wire.settle();
  EXPECT_EQ(end_of(got_first), BP_OK);
  EXPECT_EQ(end_of(got_second), BP_OK);
  EXPECT_EQ(one, large);
  EXPECT_EQ(two, small);
}

TEST(MessengerTest, MessagesToTheOwnRankNeedNoWire) {
  Wire wire(1);
  const Data data = numbers(kLarge);
  Data got(kLarge);
  auto received = recv(wire[0], 0, 1, got);
  EXPECT_EQ(end_of(send(wire[0], 0, 1, data)), BP_OK);
  EXPECT_EQ(end_of(received), BP_OK);
  EXPECT_EQ(got, data);
  auto sent = send(wire[0], 0, 1, data);
  EXPECT_EQ(end_of(sent), BP_AGAIN);
  sent->cancel();
  EXPECT_EQ(end_of(sent), BP_CANCELLED);
}

TEST(MessengerTest, AnEmptyMessageIsAMessage) {
  Wire wire(2);
  Data none;
  EXPECT_EQ(end_of(send(wire[0], 1, 5, none)), BP_OK);
  auto received = recv(wire[1], 0, 5, none);
  EXPECT_EQ(end_of(received), BP_AGAIN);
  wire.settle();
  EXPECT_EQ(end_of(received), BP_OK);
}

TEST(MessengerTest, UnexpectedMessagesTakeBoundedMemoryAndAllArrive) {
  Wire wire(2);
  constexpr uint32_t kCount = 5000;
  std::vector<Data> data;
  std::vector<std::unique_ptr<Work>> sends;
  for (uint32_t i = 0; i < kCount; ++i) data.push_back(numbers(1000, i));
  uint64_t unasked = 0;
  for (const Data& one : data) {
    sends.push_back(send(wire[0], 1, 5, one));
    if (!sends.back()) unasked += 4000;
  }
  EXPECT_LE(unasked, Messenger::kWindow);
  wire.settle();
  for (uint32_t i = 0; i < kCount; ++i) {
    Data got(1000);
    auto received = recv(wire[1], 0, 5, got);
    wire.settle();
    ASSERT_EQ(end_of(received), BP_OK);
    ASSERT_EQ(got, data[i]);
    ASSERT_EQ(end_of(sends[i]), BP_OK);
  }
  EXPECT_EQ(send(wire[0], 1, 5, data[0]), nullptr);  // its window was returned
}

TEST(MessengerTest, ALargeMessageThatDoesNotFitIsDroppedAndItsSendDone) {
  Wire wire(2);
  const Data data = numbers(kLarge);
  Data small(3);
  bp_result result = {sizeof result, -1, 0, 0};
  auto sent = send(wire[0], 1, 5, data);
  auto received = recv(wire[1], 0, 5, small, &result);
  wire.settle();
  EXPECT_EQ(end_of(received), BP_INVALID);
  EXPECT_EQ(result.bytes, kLarge * 4);
  EXPECT_EQ(end_of(sent), BP_OK);
  EXPECT_EQ(send(wire[0], 1, 5, numbers(3)), nullptr);
  auto next = recv(wire[1], 0, 5, small);
  wire.settle();
  EXPECT_EQ(end_of(next), BP_OK);
}

TEST(MessengerTest, ACancelledSendIsWithdrawn) {
  Wire wire(2);
  const Data data = numbers(kLarge), next = numbers(2);
  auto sent = send(wire[0], 1, 5, data);
  wire.settle();
  sent->cancel();
  EXPECT_EQ(end_of(sent), BP_CANCELLED);
  send(wire[0], 1, 5, next);
  wire.settle();
  Data got(2);
  EXPECT_EQ(end_of(recv(wire[1], 0, 5, got)), BP_OK);
  EXPECT_EQ(got, next);
}

TEST(MessengerTest, AReceiveWhoseMessageIsWithdrawnAmidItsDataTakesTheNext) {
  Wire wire(2);
  const Data data = numbers(kLarge), next = numbers(kLarge, 9);
  Data got(kLarge);
  auto received = recv(wire[1], 0, 5, got);
  auto sent = send(wire[0], 1, 5, data);
  ASSERT_TRUE(wire.carry(0, 1));  // announce
  ASSERT_TRUE(wire.carry(1, 0));  // ready
  ASSERT_TRUE(wire.carry(0, 1));  // a piece
  sent->cancel();
  EXPECT_EQ(end_of(sent), BP_CANCELLED);
  wire.settle();
  EXPECT_EQ(end_of(received), BP_AGAIN);
  auto again = send(wire[0], 1, 5, next);
  wire.settle();
  EXPECT_EQ(end_of(received), BP_OK);
  EXPECT_EQ(got, next);
}

TEST(MessengerTest, AReceiveCancelledAmidItsDataLeavesTheMessageToTheNext) {
  Wire wire(2);
  const Data data = numbers(kLarge), later = numbers(3, 9);
  Data got(kLarge), whole(kLarge), small(3);
  auto received = recv(wire[1], 0, 5, got);
  auto sent = send(wire[0], 1, 5, data);
  send(wire[0], 1, 5, later);
  ASSERT_TRUE(wire.carry(0, 1));  // announce
  ASSERT_TRUE(wire.carry(0, 1));  // the later one
  ASSERT_TRUE(wire.carry(1, 0));  // ready
  ASSERT_TRUE(wire.carry(0, 1));  // a piece
  received->cancel();
  EXPECT_EQ(end_of(received), BP_CANCELLED);
  const Data before = got;
  auto next = recv(wire[1], 0, 5, whole);
  wire.settle();
  EXPECT_EQ(got, before);  // not written after the cancel
  EXPECT_EQ(end_of(next), BP_OK);
  EXPECT_EQ(whole, data);
  EXPECT_EQ(end_of(sent), BP_OK);
  EXPECT_EQ(end_of(recv(wire[1], 0, 5, small)), BP_OK);
  EXPECT_EQ(small, later);
}

TEST(MessengerTest, AMessageWhoseReceiveIsCancelledIsKeptWhole) {
  Wire wire(2);
  const Data data = numbers(kLarge);
  Data got(kLarge), whole(kLarge);
  auto received = recv(wire[1], 0, 5, got);
  auto sent = send(wire[0], 1, 5, data);
  ASSERT_TRUE(wire.carry(0, 1));
  ASSERT_TRUE(wire.carry(1, 0));
  received->cancel();  // before any data
  wire.settle();
  EXPECT_EQ(end_of(sent), BP_OK);
  wire[1].lost(0, Failure(BP_PEER_LOST, "rank 0 left", 0));  // messages that have arrived whole are still received
  EXPECT_EQ(end_of(recv(wire[1], 0, 5, whole)), BP_OK);
  EXPECT_EQ(whole, data);
}

TEST(MessengerTest, ALostPeerFailsOperationsWithIt) {
  Wire wire(3);
  const Data data = numbers(kLarge);
  Data one(kLarge), two(kLarge), any(kLarge);
  auto to = send(wire[1], 0, 5, data);
  auto waiting = recv(wire[1], 0, 6, one);
  auto half = recv(wire[1], 0, 7, two);
  auto anyone = recv(wire[1], BP_ANY_SOURCE, 8, any);
  auto other = send(wire[0], 1, 7, data);
  ASSERT_TRUE(wire.carry(0, 1));
  ASSERT_TRUE(wire.carry(1, 0));  // the announcement of `to`
  ASSERT_TRUE(wire.carry(1, 0));  // ready for `half`
  ASSERT_TRUE(wire.carry(0, 1));
  const Failure why(BP_PEER_LOST, "rank 0 died", 0);
  wire[1].lost(0, why);
  EXPECT_EQ(end_of(to), BP_PEER_LOST);
  EXPECT_EQ(end_of(waiting), BP_PEER_LOST);
  EXPECT_EQ(end_of(half), BP_PEER_LOST);
  EXPECT_EQ(end_of(anyone), BP_AGAIN);
  const Failure refusal = failure_of([&wire, &data] { send(wire[1], 0, 5, data); });
  EXPECT_EQ(refusal.status(), BP_PEER_LOST);
  EXPECT_STREQ(refusal.what(), "rank 0 died");
  wire[1].lost(2, Failure(BP_PEER_LOST, "rank 2 died", 2));
  EXPECT_EQ(end_of(anyone), BP_PEER_LOST);
}

TEST(MessengerTest, AbortEndsEverythingWithItsReason) {
  Wire wire(2);
  const Data data = numbers(kLarge);
  Data one(kLarge), two(kLarge);
  auto sent = send(wire[0], 1, 5, data);
  auto waiting = recv(wire[0], 1, 6, one);
  auto half = recv(wire[0], 1, 7, two);
  auto other = send(wire[1], 0, 7, data);
  ASSERT_TRUE(wire.carry(1, 0));
  ASSERT_TRUE(wire.carry(0, 1));
  wire[0].abort(Failure(BP_TIMEOUT, "the watchdog barks"));
  wire[0].abort(Failure(BP_CANCELLED, "later"));
  for (const auto* work : {&sent, &waiting, &half}) EXPECT_EQ(end_of(*work), BP_TIMEOUT);
  for (const Failure& refusal : {failure_of([&wire, &data] { send(wire[0], 1, 5, data); }),
                                 failure_of([&wire, &one] { recv(wire[0], 1, 5, one); })}) {
    EXPECT_EQ(refusal.status(), BP_TIMEOUT);
    EXPECT_STREQ(refusal.what(), "the watchdog barks");
  }
  Messenger::Bytes frame;
  EXPECT_FALSE(wire[0].next(1, frame));
  EXPECT_TRUE(wire[0].aborted());
}

// Also for a second abort during the first: operations submitted after its return fail with its reason.
TEST(MessengerTest, AnAbortIsCompleteWhenItReturns) {
  for (int round = 0; round < 2000; ++round) {
    Wire wire(3);
    wire[0].lost(1, Failure(BP_PEER_LOST, "rank 1 has left", 1));
    const auto end = [&wire] {
      wire[0].abort(Failure(BP_CANCELLED, "the end"));
      Data got(1);
      EXPECT_EQ(failure_of([&] { recv(wire[0], 1, 1, got); }).status(), BP_CANCELLED);
    };
    std::thread other(end);
    end();
    other.join();
  }
}

TEST(MessengerTest, FlushWaitsForTheTransport) {
  Wire wire(2);
  EXPECT_TRUE(wire[0].flush(0));
  send(wire[0], 1, 5, numbers(3));
  EXPECT_FALSE(wire[0].flush(0));
  Messenger::Bytes frame;
  EXPECT_TRUE(wire[0].next(1, frame));
  EXPECT_FALSE(wire[0].flush(0));  // it may still be in transit
  EXPECT_FALSE(wire[0].next(1, frame));
  EXPECT_TRUE(wire[0].flush(0));
}

TEST(MessengerTest, TheTransportReportsWhetherALostPeerGotTheLastFrame) {
  for (const bool is_carried : {true, false}) {
    Wire wire(2);
    const Data data = numbers(Messenger::kPiece / 4);
    Data got(data.size());
    auto received = recv(wire[1], 0, 5, got);
    auto sent = send(wire[0], 1, 5, data);
    ASSERT_TRUE(wire.carry(0, 1));  // announce
    ASSERT_TRUE(wire.carry(1, 0));  // ready
    ASSERT_TRUE(wire.carry(0, 1));  // all of it; the peer has it and leaves
    wire[0].lost(1, Failure(BP_PEER_LOST, "rank 1 left", 1));
    EXPECT_EQ(end_of(sent), BP_AGAIN);
    Messenger::Bytes frame;
    if (is_carried) {
      EXPECT_FALSE(wire[0].next(1, frame));
    } else {
      wire[0].not_carried(1);
    }
    EXPECT_EQ(end_of(sent), is_carried ? BP_OK : BP_PEER_LOST);
    EXPECT_TRUE(wire[0].flush(0));
  }
}

TEST(MessengerTest, AFrameThatWasNotTakenFailsWithItsPeer) {
  Wire wire(2);
  const Data data = numbers(Messenger::kPiece / 4);
  Data got(data.size());
  auto received = recv(wire[1], 0, 5, got);
  auto sent = send(wire[0], 1, 5, data);
  ASSERT_TRUE(wire.carry(0, 1));
  ASSERT_TRUE(wire.carry(1, 0));
  Messenger::Bytes frame;
  ASSERT_TRUE(wire[0].next(1, frame));
  wire[0].not_carried(1);
  EXPECT_FALSE(wire[0].next(1, frame));
  EXPECT_EQ(end_of(sent), BP_AGAIN);
  wire[0].lost(1, Failure(BP_PEER_LOST, "rank 1 left", 1));
  EXPECT_EQ(end_of(sent), BP_PEER_LOST);
}

TEST(MessengerTest, MalformedFramesAreRefused) {
  Wire wire(2);
  Messenger::Bytes frame(Messenger::kHeadSize, std::byte{0xff});
  const std::string malformed = "malformed frame";
  for (const Failure& refusal :
       {failure_of([&frame] { Messenger::frame_size(frame.data()); }),
        failure_of([&wire, &frame] { wire[0].arrived(1, frame); }), failure_of([&wire, &frame] {
          wire[0].arrived(1, {frame.data(), 3});
        })}) {
    EXPECT_EQ(refusal.status(), BP_PEER_LOST);
    EXPECT_NE(std::string(refusal.what()).find(malformed), std::string::npos) << refusal.what();
  }
  const Messenger::Head unasked = {4, 4, 0, 99, 4};  // data of a message that was never announced
  frame.assign(Messenger::kHeadSize + 4, std::byte{});
  std::memcpy(frame.data(), &unasked, sizeof unasked);
  EXPECT_NO_THROW(wire[0].arrived(1, frame));  // ignored, as after a dropped message
}

}  // namespace
}  // namespace backplane::sdk
