// SPDX-License-Identifier: Apache-2.0
//
// Messengers whose data is out-of-band: the test carries the frames and moves the data.
#include <cstring>
#include <deque>

#include "sdk/failure_of.hpp"
#include "sdk/messenger_wire.hpp"

namespace backplane::sdk {
namespace {

class MessengerOutOfBandTest : public testing::Test {
 protected:
  // One frame from one rank to the other. False: there is none.
  bool carry(int32_t from, int32_t to) {
    Messenger::Frame frame;
    if (!at(from).next(to, frame)) return false;
    EXPECT_EQ(frame.head.payload, 0U);
    if (frame.buffer) data_.push_back(frame);
    at(to).arrived(from, frame.head, {});
    return true;
  }
  void settle() {
    while (carry(0, 1) || carry(1, 0) || carry(0, 0)) {
    }
  }
  // Moves the data of the first message that has begun.
  void move_data() {
    ASSERT_FALSE(data_.empty());
    ASSERT_FALSE(receives_.empty());
    EXPECT_EQ(sizes_.front(), data_.front().data.size());
    std::memcpy(receives_.front().data, data_.front().data.data(), sizes_.front());
    receives_.front().received->finish();
    data_.pop_front();
    receives_.pop_front();
    sizes_.pop_front();
  }
  Messenger& at(int32_t rank) { return rank == 0 ? sender_ : receiver_; }
  Messenger::OnData on_data() {
    return [this](int32_t peer, uint64_t size, const Receive& receive) {
      EXPECT_EQ(peer, 0);
      receives_.push_back(receive);
      sizes_.push_back(size);
    };
  }

  std::deque<Receive> receives_;
  std::deque<uint64_t> sizes_;
  Messenger sender_{0, 2, [](int32_t) {}, {.eager = 0}, on_data()};
  Messenger receiver_{1, 2, [](int32_t) {}, {.eager = 0}, on_data()};
  std::deque<Messenger::Frame> data_;  // released before the messengers
};

TEST_F(MessengerOutOfBandTest, AMessageIsWholeAndEndsWithItsData) {
  const Data data = numbers(kLarge);
  Data got(kLarge);
  auto received = recv(receiver_, 0, 5, got);
  auto sent = send(sender_, 1, 5, data);
  settle();
  EXPECT_EQ(end_of(sent), BP_AGAIN);
  EXPECT_EQ(end_of(received), BP_AGAIN);
  received->cancel();  // too late, like a cancelled send
  sent->cancel();
  receiver_.lost(0, Failure(BP_PEER_LOST, "lost", 0));
  move_data();
  EXPECT_EQ(end_of(sent), BP_OK);
  EXPECT_EQ(end_of(received), BP_OK);
  EXPECT_EQ(got, data);
}

TEST_F(MessengerOutOfBandTest, MessagesToThisRankAreCarriedLikeOthers) {
  const Data data = numbers(1);
  Data got(1);
  auto sent = send(sender_, 0, 5, data);
  auto received = recv(sender_, 0, 5, got);
  EXPECT_EQ(end_of(sent), BP_AGAIN);
  settle();
  move_data();
  EXPECT_EQ(end_of(sent), BP_OK);
  EXPECT_EQ(end_of(received), BP_OK);
  EXPECT_EQ(got, data);
}

TEST_F(MessengerOutOfBandTest, ACancelledReceiveEndsIfItsMessageIsWithdrawn) {
  const Data data = numbers(1);
  Data got(1);
  auto received = recv(receiver_, 0, 5, got);
  auto sent = send(sender_, 1, 5, data);
  EXPECT_TRUE(carry(0, 1));
  received->cancel();
  EXPECT_EQ(end_of(received), BP_AGAIN);
  sent->cancel();
  EXPECT_EQ(end_of(sent), BP_CANCELLED);
  settle();
  EXPECT_EQ(end_of(received), BP_CANCELLED);
  EXPECT_TRUE(receives_.empty());
}

TEST_F(MessengerOutOfBandTest, DataThatNoReceiveHasTakenIsRefused) {
  const Messenger::Head data = {4, 0, 0, 1, 4};
  EXPECT_EQ(failure_of([&] { receiver_.arrived(0, data, {}); }).status(), BP_PEER_LOST);
  receiver_.arrived(0, {2, 0, 5, 1, 4}, {});
  EXPECT_EQ(failure_of([&] { receiver_.arrived(0, data, {}); }).status(), BP_PEER_LOST);
}

}  // namespace
}  // namespace backplane::sdk
