// SPDX-License-Identifier: Apache-2.0
//
// Receives of any tag, probed messages and notices of ends over zmq.
#include <atomic>

#include "plugins/zmq/support.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

constexpr size_t kSmall = 100;
constexpr size_t kLarge = 3 << 20;  // announced: stays with its sender

// Two ranks of this thread.
class ZmqProbe : public testing::Test {
 protected:
  static bp_op recv_of(bp_message* message, Bytes& bytes, bp_result* result = nullptr) {
    bp_op op = Rank::make_recv(-7, 12345, bytes, result);  // ignored
    op.message = message;
    return op;
  }
  const bp_probe_api& api() {
    return *static_cast<const bp_probe_api*>(there_.agent().api().extension(there_.agent().self(), BP_EXT_PROBE));
  }
  // At rank 1.
  int32_t try_probe(int32_t peer, uint64_t tag, bp_message** message) {
    return api().probe(api().ctx, peer, tag, message, &result_, nullptr);
  }
  bp_message* probe(int32_t peer, uint64_t tag) {
    bp_message* message = nullptr;
    EXPECT_TRUE(eventually([&] { return try_probe(peer, tag, &message) != BP_AGAIN; }));
    EXPECT_NE(message, nullptr);
    return message;
  }
  void drop(bp_message* message) { api().drop(api().ctx, message); }
  // How a recv at rank 1 ends.
  int32_t end_of(const bp_op& op) {
    try {
      const int32_t status = there_.finish(there_.start(op));
      EXPECT_NE(status, BP_AGAIN) << "it has not ended";
      return status;
    } catch (const std::runtime_error& e) {  // from submit
      submit_failure_ = e.what();
      return -1;
    }
  }
  // Returns once rank 1 has received everything that rank 0 has sent.
  void settle() {
    EXPECT_EQ(here_.send(1, UINT64_C(1) << 63, {}), BP_OK);
    EXPECT_EQ(there_.recv(0, UINT64_C(1) << 63, 0).status, BP_OK);
  }

  MemoryHost host_;
  Rank here_{host_, 0, 2};
  Rank there_{host_, 1, 2};
  bp_result result_ = {sizeof(bp_result), -2, 0, 0};
  std::string submit_failure_;
};

TEST_F(ZmqProbe, AnyTagTakesTheOldestOfAllUserTags) {
  const std::vector<uint64_t> tags = {7, 3, 7, 4000000000, 3, 1};
  const Bytes large = pattern(kLarge, 2);
  bp_work* waiting = nullptr;
  EXPECT_EQ(here_.send(1, BP_TAG_INTERNAL | 9, {}), BP_OK);
  for (size_t i = 0; i < tags.size(); ++i) {
    if (i == 2) {
      waiting = here_.start(Rank::make_send(1, tags[i], large));
    } else {
      EXPECT_EQ(here_.send(1, tags[i], pattern(kSmall + i, 1)), BP_OK);
    }
  }
  settle();
  for (size_t i = 0; i < tags.size(); ++i) {
    Bytes bytes(kLarge);
    bp_result result = {sizeof(bp_result), -2, 0, 0};
    EXPECT_EQ(end_of(Rank::make_recv(i % 2 == 0 ? BP_ANY_SOURCE : 0, BP_ANY_TAG, bytes, &result)), BP_OK);
    EXPECT_EQ(result.tag, tags[i]) << i;
    EXPECT_EQ(result.bytes, i == 2 ? kLarge : kSmall + i);
  }
  EXPECT_EQ(here_.finish(waiting), BP_OK);
}

TEST_F(ZmqProbe, TheOldestReceiveWithOrWithoutATagGetsTheMessage) {
  Bytes bytes[3] = {Bytes(kSmall), Bytes(kSmall), Bytes(kSmall)};
  bp_result results[3];
  for (bp_result& each : results) each = {sizeof(bp_result), -2, 0, 0};
  bp_work* const named = there_.start(Rank::make_recv(0, 5, bytes[0], &results[0]));
  bp_work* const any = there_.start(Rank::make_recv(0, BP_ANY_TAG, bytes[1], &results[1]));
  bp_work* const later = there_.start(Rank::make_recv(0, 5, bytes[2], &results[2]));
  settle();
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(here_.send(1, 5, pattern(kSmall, i)), BP_OK);
  EXPECT_EQ(there_.finish(named), BP_OK);
  EXPECT_EQ(there_.finish(any), BP_OK);
  EXPECT_EQ(there_.finish(later), BP_OK);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(bytes[i], pattern(kSmall, i));
    EXPECT_EQ(results[i].tag, 5U);
  }
}

TEST_F(ZmqProbe, AProbedMessageIsReceivedAndTheNextIsNotHeld) {
  bp_message* none = nullptr;
  EXPECT_EQ(try_probe(0, 5, &none), BP_AGAIN);
  for (const size_t size : {size_t{0}, kSmall, kLarge}) {
    const Bytes first = pattern(size, 1), second = pattern(size, 2);
    bp_work* const sending[] = {here_.start(Rank::make_send(1, 5, first)), here_.start(Rank::make_send(1, 5, second))};
    bp_message* const message = probe(BP_ANY_SOURCE, size == 0 ? 5 : BP_ANY_TAG);
    EXPECT_EQ(result_.source, 0);
    EXPECT_EQ(result_.tag, 5U);
    EXPECT_EQ(result_.bytes, size);
    EXPECT_EQ(there_.recv(0, 5, size).bytes, second);
    Bytes bytes(size);
    bp_result result = {sizeof(bp_result), -2, 0, 0};
    EXPECT_EQ(end_of(recv_of(message, bytes, &result)), BP_OK);
    EXPECT_EQ(bytes, first);
    EXPECT_EQ(result.source, 0);
    EXPECT_EQ(result.tag, 5U);
    for (bp_work* const each : sending) EXPECT_EQ(here_.finish(each), BP_OK);
  }
}

TEST_F(ZmqProbe, DroppingAMessageEndsItsSend) {
  const Bytes large = pattern(kLarge, 1);
  for (Rank* const from : {&here_, &there_}) {  // another rank, and itself
    bp_work* const sending = from->start(Rank::make_send(1, 5, large));
    bp_message* const message = probe(from->rank(), 5);
    EXPECT_EQ(from->finish(sending, 1), BP_AGAIN);
    drop(message);
    EXPECT_EQ(from->finish(sending), BP_OK);
  }
}

// More bytes than the window.
TEST_F(ZmqProbe, DroppedMessagesReturnTheirWindow) {
  const Bytes bytes = pattern(60000, 1);
  for (int i = 0; i < 300; ++i) {
    bp_work* const sending = here_.start(Rank::make_send(1, 5, bytes));
    drop(probe(0, 5));
    ASSERT_EQ(here_.finish(sending), BP_OK) << i;
  }
  EXPECT_TRUE(eventually([&] {
    bp_work* const sending = here_.start(Rank::make_send(1, 5, bytes));
    drop(probe(0, 5));
    return here_.finish(sending) == BP_OK && sending == nullptr;
  })) << "it is not eager";
}

TEST_F(ZmqProbe, AHeldMessageThatItsSenderCancelsCannotBeReceived) {
  const Bytes large = pattern(kLarge, 1);
  for (const bool is_settled : {true, false}) {
    for (Rank* const from : {&here_, &there_}) {
      bp_work* const sending = from->start(Rank::make_send(1, 5, large));
      bp_message* const message = probe(from->rank(), 5);
      from->agent().api().work_cancel(from->agent().self(), sending);
      EXPECT_EQ(from->finish(sending), BP_CANCELLED);
      EXPECT_EQ(here_.send(1, 5, pattern(kSmall, 3)), BP_OK);
      if (is_settled) settle();
      Bytes bytes(kLarge);
      EXPECT_NE(end_of(recv_of(message, bytes)), BP_OK);
      EXPECT_EQ(there_.recv(0, 5, kSmall).bytes, pattern(kSmall, 3))
          << "the cancelled message has not taken its receive";
    }
  }
}

TEST_F(ZmqProbe, ArrivedMessagesOfALostRankAreReceived) {
  const Bytes large = pattern(kLarge, 1);
  EXPECT_EQ(here_.send(1, 1, pattern(kSmall, 1)), BP_OK);
  bp_work* const sending = here_.start(Rank::make_send(1, 2, large));
  bp_message* const whole = probe(0, 1);
  bp_message* const promised = probe(0, 2);
  here_.abort(BP_RESOURCE, "its memory is full");
  EXPECT_EQ(here_.finish(sending), BP_RESOURCE);
  EXPECT_NE(there_.recv(0, 9, 1).status, BP_OK) << "the rank is not lost";
  Bytes bytes(kLarge);
  EXPECT_NE(end_of(recv_of(promised, bytes)), BP_OK);
  EXPECT_NE(submit_failure_.find("rank 0 "), std::string::npos) << submit_failure_;
  EXPECT_EQ(end_of(recv_of(whole, bytes)), BP_OK);
  bp_message* none = nullptr;
  EXPECT_NE(try_probe(0, 1, &none), BP_AGAIN) << "must fail like a recv";
  EXPECT_NE(try_probe(BP_ANY_SOURCE, 1, &none), BP_AGAIN) << "no rank is left";
}

TEST_F(ZmqProbe, AnAbortEndsHeldMessages) {
  const Bytes large = pattern(kLarge, 1);
  EXPECT_EQ(here_.send(1, 1, pattern(kSmall, 1)), BP_OK);
  bp_work* const sending = there_.start(Rank::make_send(1, 2, large));
  bp_message* const whole = probe(0, 1);
  bp_message* const own = probe(1, 2);
  there_.abort(BP_TIMEOUT, "over");
  EXPECT_EQ(there_.finish(sending), BP_TIMEOUT);
  Bytes bytes(kLarge);
  EXPECT_NE(end_of(recv_of(whole, bytes)), BP_OK);
  drop(own);
  bp_message* none = nullptr;
  EXPECT_EQ(try_probe(0, 1, &none), BP_TIMEOUT);
}

TEST_F(ZmqProbe, WorksNotifyOfTheirEndOnce) {
  const auto* const notify =
      static_cast<const bp_notify_api*>(there_.agent().api().extension(there_.agent().self(), BP_EXT_NOTIFY));
  ASSERT_NE(notify, nullptr);
  const auto count = [](void* to) { ++*static_cast<std::atomic<int>*>(to); };
  std::atomic<int> told = 0, told_late = 0, told_of_abort = 0;
  Bytes one(kLarge), two(kSmall), three(kSmall);
  bp_work* const large = there_.start(Rank::make_recv(0, 1, one));
  EXPECT_EQ(notify->on_end(notify->ctx, large, count, &told, nullptr), BP_OK);
  bp_work* const small = there_.start(Rank::make_recv(0, 2, two));
  bp_work* const never = there_.start(Rank::make_recv(0, 3, three));
  EXPECT_EQ(notify->on_end(notify->ctx, never, count, &told_of_abort, nullptr), BP_OK);
  EXPECT_EQ(told, 0);
  EXPECT_EQ(here_.send(1, 1, pattern(kLarge, 1)), BP_OK);
  EXPECT_TRUE(eventually([&] { return told == 1; })) << "without a call at this rank";
  EXPECT_EQ(there_.finish(large), BP_OK);
  EXPECT_EQ(here_.send(1, 2, pattern(kSmall, 1)), BP_OK);
  settle();
  EXPECT_EQ(notify->on_end(notify->ctx, small, count, &told_late, nullptr), BP_OK);
  EXPECT_EQ(told_late, 1) << "it had ended";
  EXPECT_EQ(there_.finish(small), BP_OK);
  there_.abort(BP_TIMEOUT, "over");
  EXPECT_EQ(told_of_abort, 1);
  EXPECT_EQ(there_.finish(never), BP_TIMEOUT);
  EXPECT_EQ(told + told_late + told_of_abort, 3);
}

}  // namespace
}  // namespace backplane::test
