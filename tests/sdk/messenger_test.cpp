// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/messenger.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>

#include "sdk/failure_of.hpp"

namespace backplane::sdk {
namespace {

// Ranks joined by a wire that moves when it is told to.
class Wire {
 public:
  explicit Wire(int32_t world_size) {
    for (int32_t rank = 0; rank < world_size; ++rank) {
      ranks_.push_back(std::make_unique<Messenger>(rank, world_size, [](int32_t) {}));
    }
  }
  Messenger& operator[](int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }

  // Carries one frame, if there is one.
  bool carry(int32_t from, int32_t to) {
    Messenger::Bytes frame;
    if (!(*this)[from].next(to, frame)) return false;
    EXPECT_EQ(Messenger::frame_size(frame.data()), frame.size());
    (*this)[to].arrived(from, frame);
    return true;
  }
  // Carries all there is.
  void settle() {
    const auto count = static_cast<int32_t>(ranks_.size());
    for (bool busy = true; busy;) {
      busy = false;
      for (int32_t from = 0; from < count; ++from) {
        for (int32_t to = 0; to < count; ++to) busy |= from != to && carry(from, to);
      }
    }
  }

 private:
  std::vector<std::unique_ptr<Messenger>> ranks_;
};

using Data = std::vector<uint32_t>;

Data numbers(size_t count, uint32_t first = 0) {
  Data data(count);
  std::iota(data.begin(), data.end(), first);
  return data;
}
std::unique_ptr<Work> send(Messenger& from, int32_t to, uint64_t tag, const Data& data) {
  return from.send(to, tag, data.data(), data.size() * sizeof(uint32_t));
}
std::unique_ptr<Work> recv(Messenger& at, int32_t from, uint64_t tag, Data& data, bp_result* result = nullptr) {
  return at.recv(from, tag, data.data(), data.size() * sizeof(uint32_t), result);
}
int32_t end_of(const std::unique_ptr<Work>& work) {
  try {
    return !work || work->wait(0) ? BP_OK : BP_AGAIN;
  } catch (const Failure& failure) {
    return failure.status();
  }
}

const size_t kLarge = Messenger::kPiece;  // elements of four bytes: four pieces

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

TEST(MessengerTest, MessagesToOneselfNeedNoWire) {
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
  EXPECT_EQ(send(wire[0], 1, 5, data[0]), nullptr);  // the room was given back
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
  EXPECT_EQ(got, before);  // nobody writes there any more
  EXPECT_EQ(end_of(next), BP_OK);
  EXPECT_EQ(whole, data);
  EXPECT_EQ(end_of(sent), BP_OK);
  EXPECT_EQ(end_of(recv(wire[1], 0, 5, small)), BP_OK);
  EXPECT_EQ(small, later);
}

TEST(MessengerTest, AMessageThatNobodyWantsAnyMoreIsKeptWhole) {
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
  wire[1].lost(0, Failure(BP_PEER_LOST, "rank 0 left", 0));  // what arrived whole is still received
  EXPECT_EQ(end_of(recv(wire[1], 0, 5, whole)), BP_OK);
  EXPECT_EQ(whole, data);
}

TEST(MessengerTest, ALostPeerEndsWhatNeedsIt) {
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

// Also for one that comes while another is about it: what is submitted after it has returned fails as it says.
TEST(MessengerTest, AnAbortHasHappenedWhenItReturns) {
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
  EXPECT_FALSE(wire[0].flush(0));  // it may still be on its way
  EXPECT_FALSE(wire[0].next(1, frame));
  EXPECT_TRUE(wire[0].flush(0));
}

TEST(MessengerTest, TheTransportKnowsWhetherALostPeerGotTheLastFrame) {
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

TEST(MessengerTest, NonsenseIsRefused) {
  Wire wire(2);
  Messenger::Bytes frame(Messenger::kHeadSize, std::byte{0xff});
  const std::string nonsense = "a frame that makes no sense";
  for (const Failure& refusal :
       {failure_of([&frame] { Messenger::frame_size(frame.data()); }),
        failure_of([&wire, &frame] { wire[0].arrived(1, frame); }), failure_of([&wire, &frame] {
          wire[0].arrived(1, {frame.data(), 3});
        })}) {
    EXPECT_EQ(refusal.status(), BP_PEER_LOST);
    EXPECT_NE(std::string(refusal.what()).find(nonsense), std::string::npos) << refusal.what();
  }
  const Messenger::Head unasked = {4, 4, 0, 99, 4};  // data of a message that was never announced
  frame.assign(Messenger::kHeadSize + 4, std::byte{});
  std::memcpy(frame.data(), &unasked, sizeof unasked);
  EXPECT_NO_THROW(wire[0].arrived(1, frame));  // as after a message that was dropped
}

// A recv of the message that was probed; small enough to be written here.
std::unique_ptr<Work> recv_probed(Messenger& at, bp_message* message, Data& data, bp_result* result = nullptr) {
  bp_op op;
  bp_op_init(&op, BP_RECV);
  op.dtype = BP_U32;
  op.output = {data.data(), data.size(), BP_HOST, 0};
  op.message = message;
  op.result = result;
  return at.submit(op);
}
int32_t end_of_probed(Messenger& at, bp_message* message, Data& data) {
  try {
    return end_of(recv_probed(at, message, data));
  } catch (const Failure& failure) {
    return failure.status();
  }
}
// NULL: there is none yet.
bp_message* probe(Messenger& at, int32_t peer, uint64_t tag, bp_result* result) {
  bp_message* message = nullptr;
  const bp_probe_api* api = at.probe_table();
  const int32_t status = api->probe(api->ctx, peer, tag, &message, result, nullptr);
  EXPECT_EQ(status, message == nullptr ? BP_AGAIN : BP_OK);
  return message;
}
void drop(Messenger& at, bp_message* message) { at.probe_table()->drop(at.probe_table()->ctx, message); }

TEST(MessengerTest, ProbedMessagesOfAllWaysAreReceived) {
  Wire wire(2);
  for (const size_t count : {size_t{1}, kLarge}) {
    const Data data = numbers(count);
    Data got(count);
    bp_result result = {sizeof result, -1, 0, 0};
    EXPECT_EQ(probe(wire[1], 0, 5, &result), nullptr);
    auto sent = send(wire[0], 1, 5, data);
    wire.settle();
    bp_message* const message = probe(wire[1], BP_ANY_SOURCE, BP_ANY_TAG, &result);
    ASSERT_NE(message, nullptr);
    EXPECT_EQ(result.source, 0);
    EXPECT_EQ(result.tag, 5U);
    EXPECT_EQ(result.bytes, 4 * count);
    bp_result end = {sizeof end, -1, 0, 0};
    auto received = recv_probed(wire[1], message, got, &end);
    wire.settle();
    EXPECT_EQ(end_of(received), BP_OK);
    EXPECT_EQ(end_of(sent), BP_OK);
    EXPECT_EQ(got, data);
    EXPECT_EQ(end.tag, 5U);
  }
}

TEST(MessengerTest, ADroppedMessageEndsItsSend) {
  Wire wire(2);
  const Data large = numbers(kLarge);
  bp_result result = {sizeof result, -1, 0, 0};
  auto sent = send(wire[0], 1, 5, large);
  wire.settle();
  bp_message* const message = probe(wire[1], 0, 5, &result);
  wire.settle();
  EXPECT_EQ(end_of(sent), BP_AGAIN);
  drop(wire[1], message);
  wire.settle();
  EXPECT_EQ(end_of(sent), BP_OK);
}

TEST(MessengerTest, AMessageThatIsHeldCanBeWithdrawn) {
  Wire wire(2);
  const Data large = numbers(kLarge);
  Data got(kLarge), other(1);
  bp_result result = {sizeof result, -1, 0, 0};
  auto sent = send(wire[0], 1, 5, large);
  wire.settle();
  bp_message* const message = probe(wire[1], 0, 5, &result);
  sent->cancel();
  wire.settle();
  EXPECT_EQ(end_of_probed(wire[1], message, got), BP_CANCELLED);

  // The same when the receive is there already, and its answer crosses the withdrawal.
  sent = send(wire[0], 1, 5, large);
  wire.settle();
  auto received = recv_probed(wire[1], probe(wire[1], 0, 5, &result), got);
  EXPECT_EQ(end_of(send(wire[0], 1, 5, numbers(1))), BP_OK);
  sent->cancel();
  wire.settle();
  EXPECT_EQ(end_of(received), BP_CANCELLED);
  EXPECT_EQ(end_of(recv(wire[1], 0, 5, other)), BP_OK) << "the next message is not taken in its place";
}

TEST(MessengerTest, OfALostPeerAHeldMessageThatArrivedIsReceived) {
  Wire wire(2);
  const Data small = numbers(1), large = numbers(kLarge);
  Data got(1), all(kLarge);
  bp_result result = {sizeof result, -1, 0, 0};
  send(wire[0], 1, 1, small);
  auto sent = send(wire[0], 1, 2, large);
  wire.settle();
  bp_message* const here = probe(wire[1], 0, 1, &result);
  bp_message* const there = probe(wire[1], 0, 2, &result);
  wire[1].lost(0, Failure(BP_PEER_LOST, "gone", 0));
  EXPECT_EQ(end_of_probed(wire[1], here, got), BP_OK);
  EXPECT_EQ(end_of_probed(wire[1], there, all), BP_PEER_LOST);
}

TEST(MessengerTest, HeldMessagesMayBeDroppedAfterAnAbort) {
  Wire wire(2);
  const Data small = numbers(1), large = numbers(kLarge);
  Data got(1);
  bp_result result = {sizeof result, -1, 0, 0};
  send(wire[0], 1, 1, small);
  auto sent = send(wire[0], 1, 2, large);
  wire.settle();
  bp_message* const one = probe(wire[1], 0, 1, &result);
  bp_message* const two = probe(wire[1], 0, 2, &result);
  wire[1].abort(Failure(BP_TIMEOUT, "over"));
  drop(wire[1], two);
  EXPECT_EQ(end_of_probed(wire[1], one, got), BP_TIMEOUT);
  bp_message* none = nullptr;
  const bp_probe_api* api = wire[1].probe_table();
  EXPECT_EQ(api->probe(api->ctx, 0, 1, &none, &result, nullptr), BP_TIMEOUT);
}

}  // namespace
}  // namespace backplane::sdk
