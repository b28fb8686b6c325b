// SPDX-License-Identifier: Apache-2.0
#include "mailbox_test.hpp"

#include <thread>

namespace backplane::sdk {
namespace {

TEST(MailboxTest, AReceiveTakesTheOldestMessageOfItsSourceAndTag) {
  Mailbox mailbox;
  mailbox.deliver(1, 7, bytes("other tag"));
  mailbox.deliver(2, 5, bytes("other source"));
  mailbox.deliver(1, 5, bytes("first"));
  mailbox.deliver(1, 5, bytes("second"));
  Slot one, two;
  EXPECT_EQ(status_of(*mailbox.take(one.from(1, 5))), BP_OK);
  EXPECT_EQ(status_of(*mailbox.take(two.from(1, 5))), BP_OK);
  EXPECT_EQ(one.text(), "first");
  EXPECT_EQ(two.text(), "second");
}

TEST(MailboxTest, AllBitsOfATagCount) {
  Mailbox mailbox;
  mailbox.deliver(1, UINT64_C(1) << 63 | 5, bytes("core's"));
  Slot slot;
  auto received = mailbox.take(slot.from(1, 5));
  EXPECT_EQ(status_of(*received), BP_AGAIN);
  mailbox.deliver(1, 5, bytes("user's"));
  EXPECT_EQ(status_of(*received), BP_OK);
  EXPECT_EQ(slot.text(), "user's");
}

TEST(MailboxTest, AMessageGoesToTheOldestReceiveThatMatches) {
  Mailbox mailbox;
  Slot anyone, named;
  auto first = mailbox.take(anyone.from(BP_ANY_SOURCE, 5));
  auto second = mailbox.take(named.from(1, 5));
  mailbox.deliver(1, 5, bytes("a"));
  EXPECT_EQ(status_of(*first), BP_OK);
  EXPECT_EQ(anyone.result.source, 1);
  EXPECT_EQ(status_of(*second), BP_AGAIN);
}

TEST(MailboxTest, AMessageTooLongIsConsumedAndDescribed) {
  Mailbox mailbox;
  Slot small(3), large;
  mailbox.deliver(4, 5, bytes("four"));
  mailbox.deliver(4, 5, bytes("next"));
  EXPECT_EQ(status_of(*mailbox.take(small.from(4, 5))), BP_INVALID);
  EXPECT_EQ(small.result.source, 4);
  EXPECT_EQ(small.result.bytes, 4U);
  EXPECT_EQ(status_of(*mailbox.take(large.from(4, 5))), BP_OK);
  EXPECT_EQ(large.text(), "next");
}

TEST(MailboxTest, ASmallPutIsCopiedAndALargeOneWaitsInItsBuffer) {
  Mailbox mailbox;
  std::string small = "small", large(Mailbox::kEagerLimit + 1, 'x');
  EXPECT_EQ(mailbox.put(1, 1, small.data(), small.size()), nullptr);
  small = "spoil";
  auto sent = mailbox.put(1, 2, large.data(), large.size());
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(status_of(*sent), BP_AGAIN);
  Slot one, two(large.size());
  mailbox.take(one.from(1, 1));
  EXPECT_EQ(one.text(), "small");
  mailbox.take(two.from(1, 2));
  EXPECT_EQ(status_of(*sent), BP_OK);
  EXPECT_EQ(two.text(), large);
}

TEST(MailboxTest, EagerMessagesTakeBoundedMemory) {
  Mailbox mailbox;
  const std::string data(Mailbox::kEagerLimit, 'x');
  uint64_t copied = 0;
  while (mailbox.put(1, 1, data.data(), data.size()) == nullptr) ASSERT_LE(copied += data.size(), Mailbox::kCapacity);
  EXPECT_EQ(copied, Mailbox::kCapacity);
  Slot slot(data.size());
  mailbox.take(slot.from(1, 1));
  EXPECT_EQ(mailbox.put(1, 1, data.data(), data.size()), nullptr);  // the capacity is free again
}

TEST(MailboxTest, WaitingOperationsCanBeCancelled) {
  Mailbox mailbox;
  const std::string large(Mailbox::kEagerLimit + 1, 'x');
  auto sent = mailbox.put(1, 1, large.data(), large.size());
  Slot slot;
  auto received = mailbox.take(slot.from(1, 2));
  EXPECT_TRUE(mailbox.cancel(sent.get()));
  EXPECT_TRUE(mailbox.cancel(received.get()));
  EXPECT_FALSE(mailbox.cancel(received.get()));
  EXPECT_EQ(status_of(*sent), BP_CANCELLED);
  EXPECT_EQ(status_of(*received), BP_CANCELLED);
  mailbox.deliver(1, 2, bytes("later"));  // not for the cancelled receive
  Slot next;
  EXPECT_EQ(status_of(*mailbox.take(next.from(1, 2))), BP_OK);
}

TEST(MailboxTest, ArrivedMessagesOfALostPeerAreReceived) {
  Mailbox mailbox;
  const Failure gone(BP_PEER_LOST, "gone", 1);
  Slot waiting, anyone, late, there;
  mailbox.deliver(1, 1, bytes("last words"));
  auto named = mailbox.take(waiting.from(1, 2));
  auto any = mailbox.take(anyone.from(BP_ANY_SOURCE, 2));
  mailbox.drop_peer(1, gone, 2);
  EXPECT_EQ(status_of(*named), BP_PEER_LOST);
  EXPECT_EQ(status_of(*any), BP_AGAIN);  // rank 2 may still send
  EXPECT_EQ(status_of(*mailbox.take(there.from(1, 1))), BP_OK);
  EXPECT_EQ(status_of(*mailbox.take(late.from(1, 1))), BP_PEER_LOST);
  mailbox.drop_peer(2, gone, 2);
  EXPECT_EQ(status_of(*any), BP_PEER_LOST);
}

TEST(MailboxTest, CloseFailsReceiversAndSenders) {
  Mailbox mailbox;
  const std::string large(Mailbox::kEagerLimit + 1, 'x');
  Slot slot, late;
  auto sent = mailbox.put(1, 1, large.data(), large.size());
  auto received = mailbox.take(slot.from(1, 2));
  mailbox.close(Failure(BP_CANCELLED, "closed"), Failure(BP_PEER_LOST, "left"));
  EXPECT_EQ(status_of(*sent), BP_PEER_LOST);
  EXPECT_EQ(status_of(*received), BP_CANCELLED);
  EXPECT_EQ(status_of(*mailbox.take(late.from(1, 1))), BP_CANCELLED);
  EXPECT_EQ(status_of(*mailbox.put(1, 1, "x", 1)), BP_PEER_LOST);
}

TEST(MailboxTest, AnAnnouncedMessageIsFetchedByTheReceiveThatTakesIt) {
  Mailbox mailbox;
  Slot slot;
  mailbox.announce(1, 5, 4, 77, [](Receive* receive) {
    std::memcpy(receive->data, "four", 4);
    receive->received->finish();
    return true;
  });
  EXPECT_EQ(status_of(*mailbox.take(slot.from(1, 5))), BP_OK);
  EXPECT_EQ(slot.text(), "four");
  EXPECT_FALSE(mailbox.withdraw(1, 77));
}

TEST(MailboxTest, AnAnnouncedMessageThatIsTooLongIsNotFetched) {
  Mailbox mailbox;
  Slot slot(3);
  bool is_dropped = false;
  mailbox.announce(1, 5, 4, 77, [&is_dropped](Receive* receive) { return is_dropped = receive == nullptr; });
  EXPECT_EQ(status_of(*mailbox.take(slot.from(1, 5))), BP_INVALID);
  EXPECT_TRUE(is_dropped);
}

TEST(MailboxTest, AReceiveOfAWithdrawnMessageTakesTheNext) {
  Mailbox mailbox;
  Slot early, late;
  const auto is_no_more = [](Receive*) { return false; };
  mailbox.announce(1, 5, 4, 77, is_no_more);
  mailbox.deliver(1, 5, bytes("next"));
  EXPECT_EQ(status_of(*mailbox.take(late.from(1, 5))), BP_OK);
  EXPECT_EQ(late.text(), "next");
  auto received = mailbox.take(early.from(1, 5));
  mailbox.announce(1, 5, 4, 78, is_no_more);
  EXPECT_EQ(status_of(*received), BP_AGAIN);
}

TEST(MailboxTest, ARestoredReceiveKeepsItsOrder) {
  Mailbox mailbox;
  Slot first, second;
  Receive taken;
  mailbox.announce(1, 5, 4, 77, [&taken](Receive* receive) {
    taken = *receive;
    return true;
  });
  auto older = mailbox.take(first.from(1, 5));
  auto younger = mailbox.take(second.from(1, 5));
  mailbox.restore(taken);  // the message was withdrawn
  mailbox.deliver(1, 5, bytes("new"));
  EXPECT_EQ(status_of(*older), BP_OK);
  EXPECT_EQ(status_of(*younger), BP_AGAIN);
}

TEST(MailboxTest, SendersAndReceiversOfManyThreadsLoseNothing) {
  Mailbox mailbox;
  constexpr int kSenders = 4, kMessages = 500;
  std::vector<std::thread> threads;
  for (int sender = 0; sender < kSenders; ++sender) {
    threads.emplace_back([&mailbox, sender] {
      for (int i = 0; i < kMessages; ++i) {
        const auto sent = mailbox.put(sender, 1, &i, sizeof i);
        EXPECT_TRUE(!sent || sent->wait(BP_NO_TIMEOUT));
      }
    });
    threads.emplace_back([&mailbox, sender] {
      for (int i = 0; i < kMessages; ++i) {
        int got = -1;
        EXPECT_TRUE(mailbox.take({sender, 1, &got, sizeof got, nullptr, nullptr, 0})->wait(BP_NO_TIMEOUT));
        EXPECT_EQ(got, i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MailboxTest, AnyTagMatchesTheOldestUserTag) {
  Mailbox mailbox;
  mailbox.deliver(1, BP_TAG_INTERNAL | 5, bytes("core's"));
  mailbox.deliver(1, UINT64_C(1) << 32, bytes("a collective's"));
  mailbox.deliver(2, 9, bytes("other source"));
  mailbox.deliver(1, 8, bytes("first"));
  mailbox.deliver(1, 7, bytes("second"));
  Slot one, two, three;
  EXPECT_EQ(status_of(*mailbox.take(one.from(1, BP_ANY_TAG))), BP_OK);
  EXPECT_EQ(one.text(), "first");
  EXPECT_EQ(one.result.tag, 8U);
  EXPECT_EQ(status_of(*mailbox.take(two.from(1, BP_ANY_TAG))), BP_OK);
  EXPECT_EQ(two.text(), "second");
  EXPECT_EQ(two.result.tag, 7U);
  EXPECT_EQ(status_of(*mailbox.take(three.from(1, BP_ANY_TAG))), BP_AGAIN);
}

TEST(MailboxTest, TheOldestReceiveWithOrWithoutATagGetsTheMessage) {
  Mailbox mailbox;
  Slot any, named, later;
  auto first = mailbox.take(any.from(1, BP_ANY_TAG));
  auto second = mailbox.take(named.from(1, 5));
  auto third = mailbox.take(later.from(1, BP_ANY_TAG));
  mailbox.deliver(1, 5, bytes("a"));
  EXPECT_EQ(status_of(*first), BP_OK);
  EXPECT_EQ(any.result.tag, 5U);
  mailbox.deliver(1, 5, bytes("b"));
  EXPECT_EQ(named.text(), "b");
  mailbox.deliver(1, BP_TAG_INTERNAL | 5, bytes("c"));
  EXPECT_EQ(status_of(*third), BP_AGAIN);
}

}  // namespace
}  // namespace backplane::sdk
