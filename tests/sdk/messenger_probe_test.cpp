// SPDX-License-Identifier: Apache-2.0
#include "sdk/failure_of.hpp"
#include "sdk/messenger_wire.hpp"

namespace backplane::sdk {
namespace {

// A recv of the probed message.
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
// Null if there is none yet.
bp_message* probe(Messenger& at, int32_t peer, uint64_t tag, bp_result* result) {
  bp_message* message = nullptr;
  const bp_probe_api* api = at.probe_table();
  const int32_t status = api->probe(api->ctx, peer, tag, &message, result, nullptr);
  EXPECT_EQ(status, message == nullptr ? BP_AGAIN : BP_OK);
  return message;
}
void drop(Messenger& at, bp_message* message) { at.probe_table()->drop(at.probe_table()->ctx, message); }

TEST(MessengerProbeTest, ProbedMessagesOfAllKindsAreReceived) {
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

TEST(MessengerProbeTest, ADroppedMessageEndsItsSend) {
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

TEST(MessengerProbeTest, AHeldMessageCanBeWithdrawn) {
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

  // The same with a posted receive, whose ready frame crosses the withdrawal.
  sent = send(wire[0], 1, 5, large);
  wire.settle();
  auto received = recv_probed(wire[1], probe(wire[1], 0, 5, &result), got);
  EXPECT_EQ(end_of(send(wire[0], 1, 5, numbers(1))), BP_OK);
  sent->cancel();
  wire.settle();
  EXPECT_EQ(end_of(received), BP_CANCELLED);
  EXPECT_EQ(end_of(recv(wire[1], 0, 5, other)), BP_OK) << "the next message is not taken in its place";
}

TEST(MessengerProbeTest, AnArrivedHeldMessageOfALostPeerIsReceived) {
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

TEST(MessengerProbeTest, HeldMessagesMayBeDroppedAfterAnAbort) {
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
