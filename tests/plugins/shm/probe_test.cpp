// SPDX-License-Identifier: Apache-2.0
//
// Any-tag receives, probed messages and completion notices.
#include <atomic>
#include <utility>

#include "ranks.hpp"

namespace backplane::shm::test {
namespace {

constexpr uint64_t kLargeBytes = kEagerLimit * 10;
constexpr uint64_t kMoreThanAChannel = Staging::kLeast * 5;

// Two ranks on this thread. Parameter: read messages in the sender's process.
class Probed : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  }
  static std::vector<std::byte> filled(uint64_t size, uint64_t name) {
    std::vector<std::byte> bytes(size);
    fill(bytes, name);
    return bytes;
  }
  // Returns null if there is no message.
  bp_message* probe(int32_t peer, uint64_t tag) { return there_.messages.probe(peer, tag, result_); }
  std::unique_ptr<sdk::Work> recv(bp_message* message, std::vector<std::byte>& bytes, bp_result* result = nullptr,
                                  uint64_t flags = 0) {
    bp_op op;
    bp_op_init(&op, BP_RECV);
    op.dtype = BP_U8;
    op.flags = flags;
    op.timeout_ns = Rank::kLong;
    op.output = {bytes.data(), bytes.size(), BP_HOST, 0};
    op.message = message;
    op.result = result;
    return there_.messages.submit(op);
  }
  static int32_t end_of(sdk::Work* work) {
    try {
      return work == nullptr || work->wait(0) ? BP_OK : BP_AGAIN;
    } catch (const sdk::Failure& why) {
      return why.status();
    }
  }
  // The status of submit, or of the work after progress on the other rank.
  int32_t end_of_recv(bp_message* message, std::vector<std::byte>& bytes) {
    try {
      const auto work = recv(message, bytes);
      int32_t status = BP_AGAIN;
      EXPECT_TRUE(
          eventually([&] { return here_.messages.poll(Poll::kFull), (status = end_of(work.get())) != BP_AGAIN; }));
      return status;
    } catch (const sdk::Failure& why) {
      return why.status();
    }
  }
  bool both_end(sdk::Work* one, sdk::Work* two) {
    return eventually([&] {
      const bool is_done = end_of(one) == BP_OK;  // each test makes progress on its rank
      return end_of(two) == BP_OK && is_done;
    });
  }

  const Memory memory_{2};
  const Cma cma_ = GetParam() ? Cma::kOn : Cma::kOff;
  Rank here_{memory_.view, 0, 2, WaitPolicy{0, 0}, nullptr, cma_};
  Rank there_{memory_.view, 1, 2, WaitPolicy{0, 0}, nullptr, cma_};
  bp_result result_ = {sizeof(bp_result), -1, 0, 0};
};
INSTANTIATE_TEST_SUITE_P(Cma, Probed, testing::Bool(),
                         [](const auto& test) { return test.param ? "ReadInTheProcess" : "Sent"; });

TEST_P(Probed, AnyTagMatchesTheOldestUserTag) {
  const auto small = filled(40, 1), large = filled(kLargeBytes, 2);
  const std::vector<uint64_t> tags = {7, 3, 4000000000, 3};
  EXPECT_EQ(here_.send(1, BP_TAG_INTERNAL | 9, small.data(), small.size()), nullptr);
  EXPECT_EQ(here_.send(1, tags[0], small.data(), small.size()), nullptr);
  const auto sent = here_.send(1, tags[1], large.data(), large.size());
  for (const size_t i : {2, 3}) EXPECT_EQ(here_.send(1, tags[i], small.data(), small.size()), nullptr);
  for (size_t i = 0; i < tags.size(); ++i) {
    std::vector<std::byte> bytes(kLargeBytes);
    const auto received = there_.recv(i % 2 == 0 ? BP_ANY_SOURCE : 0, BP_ANY_TAG, bytes.data(), bytes.size(), &result_);
    EXPECT_TRUE(both_end(received.get(), i == 1 ? sent.get() : nullptr)) << i;
    EXPECT_EQ(result_.tag, tags[i]);
    EXPECT_TRUE(is_filled(bytes, result_.bytes, i == 1 ? 2 : 1));
  }
  EXPECT_EQ(probe(0, BP_ANY_TAG), nullptr) << "it does not match tags of the core";
}

TEST_P(Probed, WaitingReceiveMatchesAnyTag) {
  for (const WaitPolicy policy : {WaitPolicy{0, 0}, WaitPolicy{20'000, 0}, WaitPolicy{0, 200'000}}) {
    const Memory memory(2);
    run_ranks(memory, 2, policy, [](Rank& rank) {
      for (uint64_t round = 0; round < 200; ++round) {
        std::vector<std::byte> bytes(40);
        if (rank.id == 0) {
          fill(bytes, round);
          Rank::finish(rank.send(1, round, bytes.data(), bytes.size()));
        } else {
          bp_result result = {sizeof result, -1, 0, 0};
          Rank::finish(rank.recv(0, BP_ANY_TAG, bytes.data(), bytes.size(), &result, BP_OP_SYNC));
          ASSERT_EQ(result.tag, round);
          ASSERT_TRUE(is_filled(bytes, 40, round));
        }
      }
    });
  }
}

TEST_P(Probed, ProbedMessageIsReservedForItsReceive) {
  EXPECT_EQ(probe(0, 5), nullptr);
  for (const uint64_t size : {uint64_t{0}, uint64_t{40}, kEagerLimit, kLargeBytes, kMoreThanAChannel}) {
    const auto first = filled(size, 1), second = filled(size, 2);
    const auto sent = here_.send(1, 5, first.data(), size);
    const auto sent_second = here_.send(1, 5, second.data(), size);
    bp_message* const message = probe(BP_ANY_SOURCE, BP_ANY_TAG);
    ASSERT_NE(message, nullptr);
    EXPECT_EQ(result_.source, 0);
    EXPECT_EQ(result_.tag, 5U);
    EXPECT_EQ(result_.bytes, size);
    std::vector<std::byte> one(size), two(size);
    const auto other = there_.recv(0, 5, two.data(), size);
    EXPECT_TRUE(both_end(other.get(), sent_second.get()));
    EXPECT_TRUE(is_filled(two, size, 2)) << size;
    bp_result result = {sizeof(bp_result), -1, 0, 0};
    const auto received = recv(message, one, &result);
    EXPECT_TRUE(both_end(received.get(), sent.get()));
    EXPECT_TRUE(is_filled(one, size, 1)) << size;
    EXPECT_EQ(result.tag, 5U);
    EXPECT_EQ(result.source, 0);
  }
}

TEST_P(Probed, DroppingCompletesTheSend) {
  const auto large = filled(kLargeBytes, 1);
  for (Rank* const from : {&here_, &there_}) {  // another rank, and itself
    const auto sent = from->send(1, 5, large.data(), kLargeBytes);
    bp_message* const message = probe(from->id, 5);
    ASSERT_NE(message, nullptr);
    EXPECT_EQ(end_of(sent.get()), BP_AGAIN);
    there_.messages.drop(message);
    EXPECT_TRUE(both_end(sent.get(), nullptr));
  }
}

TEST_P(Probed, DroppingReturnsWindowSpace) {
  const auto bytes = filled(kEagerLimit, 1);
  for (uint64_t i = 0; i < 4 * kWindow / kEagerLimit; ++i) {
    ASSERT_EQ(here_.send(1, 5, bytes.data(), bytes.size()), nullptr) << i;
    bp_message* const message = probe(0, 5);
    ASSERT_NE(message, nullptr);
    there_.messages.drop(message);
  }
}

TEST_P(Probed, SenderMayCancelAProbedMessage) {
  auto large = filled(kLargeBytes, 1);
  const auto next = filled(40, 3);
  std::vector<std::byte> bytes(kLargeBytes);
  for (const bool is_seen : {true, false}) {
    for (Rank* const from : {&here_, &there_}) {
      const auto sent = from->send(1, 5, large.data(), kLargeBytes);
      bp_message* const message = probe(from->id, 5);
      ASSERT_NE(message, nullptr);
      sent->cancel();
      EXPECT_EQ(end_of(sent.get()), BP_CANCELLED);
      std::fill(large.begin(), large.end(), std::byte{});  // belongs to the sender again
      EXPECT_EQ(here_.send(1, 5, next.data(), next.size()), nullptr);
      if (is_seen) there_.messages.poll(Poll::kFull);
      EXPECT_EQ(end_of_recv(message, bytes), BP_CANCELLED);
      const auto received = there_.recv(0, 5, bytes.data(), bytes.size());
      EXPECT_TRUE(both_end(received.get(), nullptr));
      EXPECT_TRUE(is_filled(bytes, 40, 3)) << "no other receive has matched it";
      fill(large, 1);
    }
  }
}

// A receive is cancelled while its message arrives; the rest is probed.
TEST_P(Probed, ProbesAPartlyReceivedMessage) {
  const auto data = filled(kMoreThanAChannel, 1);
  int rounds = 0;
  bool is_dropped = false;
  for (int tries = 0; rounds < 2; ++tries) {
    ASSERT_LT(tries, 100) << "no receive was cancelled in time";
    const auto sent = here_.send(1, 5, data.data(), data.size());
    std::vector<std::byte> first(data.size()), bytes(data.size());
    const auto cancelled = there_.recv(0, 5, first.data(), first.size());
    here_.messages.poll(Poll::kFull);
    if (cancelled) cancelled->cancel();
    if (end_of(cancelled.get()) == BP_OK) {  // the progress threads were faster: again
      EXPECT_TRUE(eventually([&] { return there_.messages.poll(Poll::kFull), end_of(sent.get()) == BP_OK; }));
      continue;
    }
    bp_message* const message = probe(0, 5);
    ASSERT_NE(message, nullptr);
    EXPECT_EQ(result_.bytes, data.size());
    ++rounds;
    if (std::exchange(is_dropped, true)) {
      there_.messages.drop(message);
      EXPECT_TRUE(eventually([&] { return there_.messages.poll(Poll::kFull), end_of(sent.get()) == BP_OK; }));
      continue;
    }
    const auto received = recv(message, bytes);
    EXPECT_TRUE(both_end(received.get(), sent.get()));
    EXPECT_TRUE(is_filled(bytes, bytes.size(), 1));
  }
}

TEST_P(Probed, ReceivesWhatALostRankHasSent) {
  const auto small = filled(40, 1), large = filled(kLargeBytes, 2);
  EXPECT_EQ(here_.send(1, 1, small.data(), small.size()), nullptr);
  const auto sent = here_.send(1, 2, large.data(), kLargeBytes);
  bp_message* const whole = probe(0, 1);
  bp_message* const promised = probe(0, 2);
  here_.peers.leave();
  std::vector<std::byte> bytes(kLargeBytes);
  there_.messages.poll(Poll::kFull);
  EXPECT_EQ(end_of_recv(promised, bytes), BP_PEER_LOST);
  EXPECT_EQ(end_of_recv(whole, bytes), BP_OK);
  EXPECT_TRUE(is_filled(bytes, 40, 1));
  EXPECT_THROW(probe(0, 1), sdk::Failure) << "like a recv";
  EXPECT_THROW(probe(BP_ANY_SOURCE, 1), sdk::Failure) << "no other rank is left";
}

TEST_P(Probed, AbortFailsProbedMessages) {
  const auto large = filled(kLargeBytes, 2);
  const auto sent = there_.send(1, 2, large.data(), kLargeBytes);
  bp_message* const one = probe(1, 2);
  const auto sent_second = there_.send(1, 2, large.data(), kLargeBytes);
  bp_message* const two = probe(1, 2);
  there_.waiter.abort(sdk::Failure(BP_TIMEOUT, "over"));
  std::vector<std::byte> bytes(kLargeBytes);
  EXPECT_EQ(end_of_recv(one, bytes), BP_TIMEOUT);
  EXPECT_EQ(end_of(sent.get()), BP_TIMEOUT);
  there_.messages.drop(two);
  EXPECT_EQ(end_of(sent_second.get()), BP_TIMEOUT);
  EXPECT_THROW(probe(1, 2), sdk::Failure);
}

// Counts the notices.
struct NoticeCounter {
  sdk::Notice notice() {
    return {[](void* to) { ++static_cast<NoticeCounter*>(to)->times; }, this};
  }
  std::atomic<int> times = 0;
};

TEST_P(Probed, GivesEachNoticeOnceWithoutPolling) {
  const auto large = filled(kLargeBytes, 1);
  std::vector<std::byte> bytes(kLargeBytes);
  NoticeCounter sent_notice, received_notice, late_notice;
  auto received = there_.recv(0, 5, bytes.data(), kLargeBytes);
  EXPECT_TRUE(received->on_end(received_notice.notice()));
  EXPECT_EQ(received_notice.times, 0);
  auto sent = here_.send(1, 5, large.data(), kLargeBytes);
  EXPECT_TRUE(sent->on_end(sent_notice.notice()));
  EXPECT_TRUE(eventually([&] { return sent_notice.times == 1 && received_notice.times == 1; }));
  EXPECT_TRUE(sent->wait(0));
  EXPECT_TRUE(received->wait(0));
  EXPECT_TRUE(is_filled(bytes, kLargeBytes, 1));
  sent.reset();
  auto completed = here_.recv(0, 1, bytes.data(), 40);
  EXPECT_EQ(here_.send(0, 1, large.data(), 40), nullptr);
  EXPECT_TRUE(completed->on_end(late_notice.notice()));
  EXPECT_EQ(late_notice.times, 1) << "notices of completed works are given at once";
  completed.reset();
  received.reset();
  EXPECT_EQ(sent_notice.times + received_notice.times + late_notice.times, 3);
}

TEST_P(Probed, GivesNoticesOnAbort) {
  std::vector<std::byte> bytes(kLargeBytes);
  for (const bool before : {true, false}) {
    const Memory memory(2);
    Rank rank(memory.view, 0, 2, WaitPolicy{0, 0}, nullptr, Cma::kOff);
    NoticeCounter notices[3];
    const std::unique_ptr<sdk::Work> works[] = {rank.recv(1, 5, bytes.data(), kLargeBytes),
                                                rank.recv(0, 5, bytes.data(), kLargeBytes),
                                                rank.send(1, 5, bytes.data(), kLargeBytes)};
    if (!before) {
      rank.waiter.abort(sdk::Failure(BP_TIMEOUT, "over"));
      rank.messages.stop();  // its thread has completed the operations
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(works[i]->on_end(notices[i].notice()));
    if (before) rank.waiter.abort(sdk::Failure(BP_TIMEOUT, "over"));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(eventually([&] { return notices[i].times == 1; })) << i;
      EXPECT_EQ(end_of(works[i].get()), BP_TIMEOUT);
    }
  }
}

// A work may be released as soon as it is complete, while another thread is about to give its notice.
TEST_P(Probed, ReleaseWaitsForTheNotice) {
  constexpr uint64_t kRounds = 300;
  const Memory memory(2);
  run_ranks(memory, 2, WaitPolicy{20'000, 0}, [](Rank& rank) {
    std::vector<std::byte> bytes(40), end(40);
    if (rank.id == 0) {
      for (uint64_t round = 0; round <= kRounds; ++round) {
        Rank::finish(rank.send(1, round, bytes.data(), bytes.size()));
        Rank::finish(rank.recv(1, round, end.data(), end.size()));
      }
      return;
    }
    const auto last = rank.recv(0, kRounds, end.data(), end.size());
    std::thread other([&last] { Rank::finish(last); });
    for (uint64_t round = 0; round < kRounds; ++round) {
      const auto count_slowly = [](void* to) {
        for (int i = 0; i < 100; ++i) std::this_thread::yield();
        ++*static_cast<std::atomic<int>*>(to);
      };
      std::atomic<int> count = 0;
      auto work = rank.recv(0, round, bytes.data(), bytes.size());
      const bool is_pending = work != nullptr;
      EXPECT_TRUE(!is_pending || work->on_end({count_slowly, &count}));
      while (work && !work->wait(0)) std::this_thread::yield();
      work.reset();
      EXPECT_EQ(count, is_pending ? 1 : 0);
      Rank::finish(rank.send(0, round, bytes.data(), bytes.size()));
    }
    Rank::finish(rank.send(0, kRounds, bytes.data(), bytes.size()));
    other.join();
  });
}

}  // namespace
}  // namespace backplane::shm::test
