// SPDX-License-Identifier: Apache-2.0
#include "mailbox_test.hpp"

#include <thread>

namespace backplane::sdk {
namespace {

// The result of a probe.
struct Probed {
  Probed(Mailbox& mailbox, int32_t source, uint64_t tag) : message(mailbox.probe(source, tag, result)) {}
  bp_result result = {sizeof(bp_result), -7, 0, 0};
  bp_message* message;
};

TEST(MailboxProbeTest, AProbedMessageIsReceivedOnceByItsReceive) {
  Mailbox mailbox;
  EXPECT_EQ(Probed(mailbox, 1, 5).message, nullptr);
  mailbox.deliver(2, 6, bytes("other"));
  int taken = 0;
  mailbox.deliver(1, 5, bytes("first"), [&taken] { ++taken; });
  mailbox.deliver(1, 5, bytes("second"));
  const Probed probed(mailbox, BP_ANY_SOURCE, 5);
  ASSERT_NE(probed.message, nullptr);
  EXPECT_EQ(probed.result.source, 1);
  EXPECT_EQ(probed.result.tag, 5U);
  EXPECT_EQ(probed.result.bytes, 5U);
  Slot one, two;
  EXPECT_EQ(status_of(*mailbox.take(one.from(1, 5))), BP_OK);
  EXPECT_EQ(one.text(), "second");
  EXPECT_EQ(taken, 0) << "what is held still counts";
  EXPECT_EQ(status_of(*mailbox.take(probed.message, two.from(7, 7))), BP_OK);
  EXPECT_EQ(two.text(), "first");
  EXPECT_EQ(two.result.source, 1);
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(Probed(mailbox, 1, BP_ANY_TAG).message, nullptr);
  EXPECT_NE(Probed(mailbox, 2, BP_ANY_TAG).message, nullptr);
}

TEST(MailboxProbeTest, DroppingAMessageEndsItsSend) {
  Mailbox mailbox;
  const std::string large(Mailbox::kEagerLimit + 1, 'x');
  auto sent = mailbox.put(1, 5, large.data(), large.size());
  int taken = 0, fetched = 0;
  mailbox.deliver(1, 6, bytes("x"), [&taken] { ++taken; });
  mailbox.announce(1, 7, 100, 3, [&fetched](Receive* receive) { return receive == nullptr && ++fetched > 0; });
  const Probed probed[] = {{mailbox, 1, 5}, {mailbox, 1, 6}, {mailbox, 1, 7}};
  EXPECT_EQ(status_of(*sent), BP_AGAIN);
  for (const Probed& each : probed) mailbox.drop(each.message);
  EXPECT_EQ(status_of(*sent), BP_OK);
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(fetched, 1);
}

TEST(MailboxProbeTest, AProbedMessageTooLongIsConsumedAndDescribed) {
  Mailbox mailbox;
  const std::string large(Mailbox::kEagerLimit + 1, 'x');
  auto sent = mailbox.put(1, 5, large.data(), large.size());
  Slot small(3);
  EXPECT_EQ(status_of(*mailbox.take(Probed(mailbox, 1, 5).message, small.from(1, 5))), BP_INVALID);
  EXPECT_EQ(small.result.bytes, large.size());
  EXPECT_EQ(status_of(*sent), BP_OK);
}

TEST(MailboxProbeTest, HeldMessagesCountAsWaitingUntilTheyAreTaken) {
  Mailbox mailbox;
  const std::string data(Mailbox::kEagerLimit, 'x');
  std::vector<bp_message*> held;
  for (uint64_t size = 0; size < Mailbox::kCapacity; size += data.size()) {
    EXPECT_EQ(mailbox.put(1, 5, data.data(), data.size()), nullptr);
    held.push_back(Probed(mailbox, 1, 5).message);
  }
  auto sent = mailbox.put(1, 5, data.data(), data.size());
  ASSERT_NE(sent, nullptr) << "there is no room";
  mailbox.drop(held.back());
  EXPECT_EQ(mailbox.put(1, 6, data.data(), data.size()), nullptr) << "there is again";
}

TEST(MailboxProbeTest, AHeldMessageThatItsSenderCancelsCannotBeReceived) {
  Mailbox mailbox;
  const std::string large(Mailbox::kEagerLimit + 1, 'x');
  Slot slot(large.size());
  auto sent = mailbox.put(1, 5, large.data(), large.size());
  const Probed cancelled(mailbox, 1, 5);
  EXPECT_TRUE(mailbox.cancel(sent.get()));
  EXPECT_EQ(status_of(*sent), BP_CANCELLED);
  EXPECT_FALSE(mailbox.cancel(sent.get()));
  EXPECT_EQ(status_of(*mailbox.take(cancelled.message, slot.from(1, 5))), BP_CANCELLED);

  const auto fetch = [](Receive*) { return true; };
  mailbox.announce(1, 5, 4, 3, fetch);
  const Probed withdrawn(mailbox, 1, 5);
  EXPECT_TRUE(mailbox.withdraw(1, 3));
  EXPECT_EQ(status_of(*mailbox.take(withdrawn.message, slot.from(1, 5))), BP_CANCELLED);

  mailbox.announce(1, 5, 4, 4, [](Receive*) { return false; });
  EXPECT_EQ(status_of(*mailbox.take(Probed(mailbox, 1, 5).message, slot.from(1, 5))), BP_CANCELLED);

  mailbox.announce(1, 5, 4, 5, fetch);
  const Probed dropped(mailbox, 1, 5);
  EXPECT_TRUE(mailbox.withdraw(1, 5));
  mailbox.drop(dropped.message);
}

TEST(MailboxProbeTest, AReceiveOfAProbedMessageIsNotPostedAgain) {
  Mailbox mailbox;
  Receive fetched;
  mailbox.announce(1, 5, 4, 3, [&fetched](Receive* receive) {
    fetched = *receive;
    return true;
  });
  Slot slot;
  auto received = mailbox.take(Probed(mailbox, 1, 5).message, slot.from(1, 5));
  mailbox.deliver(1, 5, bytes("next"));
  mailbox.restore(fetched);
  EXPECT_EQ(status_of(*received), BP_CANCELLED);
  Slot other;
  EXPECT_EQ(status_of(*mailbox.take(other.from(1, 5))), BP_OK);
}

TEST(MailboxProbeTest, HeldMessagesOfALostPeerAreReceivedIfTheyHaveArrived) {
  Mailbox mailbox;
  const std::string large(Mailbox::kEagerLimit + 1, 'x');
  mailbox.deliver(1, 1, bytes("whole"));
  auto sent = mailbox.put(1, 2, large.data(), large.size());
  const auto fetch = [](Receive* receive) {
    if (receive != nullptr) receive->received->finish();
    return true;
  };
  mailbox.announce(1, 3, 4, 3, fetch);
  mailbox.announce(1, 4, 4, 4, fetch);
  std::vector<Probed> held;
  for (uint64_t tag = 1; tag <= 4; ++tag) held.emplace_back(mailbox, 1, tag);
  mailbox.drop_peer(1, Failure(BP_PEER_LOST, "gone", 1), 2, [](uint64_t id) { return id == 4; });
  EXPECT_EQ(status_of(*sent), BP_PEER_LOST);
  const int32_t expected[] = {BP_OK, BP_PEER_LOST, BP_PEER_LOST, BP_OK};
  for (size_t i = 0; i < held.size(); ++i) {
    Slot slot(large.size());
    EXPECT_EQ(status_of(*mailbox.take(held[i].message, slot.from(1, 0))), expected[i]) << i;
  }
  EXPECT_THROW(Probed(mailbox, 1, 5), Failure) << "as a receive";
  EXPECT_EQ(Probed(mailbox, BP_ANY_SOURCE, 5).message, nullptr) << "somebody else is left";
}

TEST(MailboxProbeTest, CloseEndsHeldMessages) {
  Mailbox mailbox;
  const std::string large(Mailbox::kEagerLimit + 1, 'x');
  auto sent = mailbox.put(1, 5, large.data(), large.size());
  mailbox.deliver(1, 6, bytes("x"));
  const Probed one(mailbox, 1, 5), two(mailbox, 1, 6);
  mailbox.close(Failure(BP_TIMEOUT, "over"), Failure(BP_PEER_LOST, "over"));
  EXPECT_EQ(status_of(*sent), BP_PEER_LOST);
  Slot slot;
  EXPECT_EQ(status_of(*mailbox.take(two.message, slot.from(1, 6))), BP_TIMEOUT);
  mailbox.drop(one.message);
  EXPECT_THROW(Probed(mailbox, 1, 5), Failure);
}

TEST(MailboxProbeTest, ProbesAndReceivesOfManyThreadsTakeEachMessageOnce) {
  Mailbox mailbox;
  constexpr int kEach = 2000;
  std::atomic<int> got = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&mailbox, &got] {
      for (int n = 0; n < kEach; ++n) {
        bp_result result = {sizeof result, -1, 0, 0};
        bp_message* message = nullptr;
        while ((message = mailbox.probe(1, BP_ANY_TAG, result)) == nullptr) std::this_thread::yield();
        Slot slot;
        if (n % 2 == 0) {
          mailbox.drop(message);
        } else {
          EXPECT_EQ(status_of(*mailbox.take(message, slot.from(1, 0))), BP_OK);
          EXPECT_EQ(slot.result.tag, result.tag);
        }
        ++got;
      }
    });
    threads.emplace_back([&mailbox, &got] {
      for (int n = 0; n < kEach; ++n) {
        Slot slot;
        EXPECT_TRUE(mailbox.take(slot.from(1, BP_ANY_TAG))->wait(INT64_C(60'000'000'000)));
        ++got;
      }
    });
  }
  for (int n = 0; n < 4 * kEach; ++n) mailbox.deliver(1, static_cast<uint64_t>(n % 7), bytes("x"));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got.load(), 4 * kEach);
}

}  // namespace
}  // namespace backplane::sdk
