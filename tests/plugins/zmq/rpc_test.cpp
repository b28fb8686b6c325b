// SPDX-License-Identifier: Apache-2.0
//
// The RPC agent by itself: peers that are gone, messages that nobody confirms, strangers.
#include "rpc/sides.hpp"

#include <sys/socket.h>

#include <cstring>
#include <zmq.hpp>

#include "plugins/zmq/stranger.hpp"
#include "support/agents.hpp"
#include "support/secret.hpp"

namespace backplane::test {
namespace {

const bp_backend& agent() { return open_backend(ZMQ_PLUGIN, "zmq"); }

// What the store says of a worker: its token, the endpoint of its socket and last its key.
struct Card {
  explicit Card(const std::shared_ptr<core::Store>& store, int32_t rank = 1) {
    text = store->get("zmq/" + std::to_string(rank), core::Deadline::after(INT64_C(20'000'000'000)));
    token = text.substr(0, 16);
    const size_t begin = text.find("tcp://");
    endpoint = text.substr(begin, text.find(' ', begin) - begin);
    key = text.substr(text.rfind(' ') + 1);
  }
  // What a worker at the same place says, with a key of its own.
  std::string with_key(const char* other) const { return text.substr(0, text.rfind(' ') + 1) + other; }

  std::string text;
  std::string token;
  std::string endpoint;
  std::string key;
};

// The first frame of a message, as share/doc/design.md describes it.
std::string head(const std::string& token, int32_t from, uint32_t parts, uint64_t number, char kind = 1) {
  std::string bytes(48, '\0');
  std::memcpy(bytes.data(), "BPR1", 4);
  bytes[4] = kind;
  std::memcpy(bytes.data() + 8, &from, sizeof(from));
  std::memcpy(bytes.data() + 12, &parts, sizeof(parts));
  std::memcpy(bytes.data() + 16, token.data(), token.size());
  std::memcpy(bytes.data() + 32, &number, sizeof(number));
  return bytes;
}
std::string sizes(const std::vector<uint64_t>& of) {
  return {reinterpret_cast<const char*>(of.data()), of.size() * sizeof(uint64_t)};
}

TEST(ZmqRpc, WhoIsGoneIsReported) {
  Sides sides(agent(), {{"connect_timeout", "50ms"}});
  ASSERT_EQ(sides.zero->send(1, 1, 100000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
  sides.one.reset();
  ASSERT_EQ(sides.zero->send(1, 2, 100000), BP_OK);
  EXPECT_EQ(sides.zero->failure(2).find("rank 1 is gone: nobody answers at tcp://127.0.0.1:"), 0U);
  EXPECT_TRUE(sides.zero->hears_of_the_loss_of(1));
  EXPECT_EQ(sides.zero->send(1, 3, 100000), BP_PEER_LOST);
}

// Who was out of reach may have been waiting for answers that were given up then, and could not be told.
TEST(ZmqRpc, WhoComesBackIsReportedOnceMore) {
  Sides sides(agent(), {{"connect_timeout", "50ms"}});
  sides.one.reset();
  ASSERT_EQ(sides.zero->send(1, 1, 100), BP_OK);
  ASSERT_TRUE(sides.zero->hears_of_the_loss_of(1));
  const Card card(sides.store, 0);
  zmq::context_t context;
  zmq::socket_t back(context, zmq::socket_type::dealer);
  back.set(zmq::sockopt::linger, 1000);
  back.connect(card.endpoint);
  back.send(zmq::buffer(head(card.token, 1, 1, 1) + sizes({0}) + std::string(8, '\0')), zmq::send_flags::none);
  EXPECT_TRUE(sides.zero->has_received(1));
  EXPECT_TRUE(sides.zero->hears_of_the_loss_of(1, 2));
}

TEST(ZmqRpc, WhatNobodyConfirmsInTimeIsReported) {
  Sides sides(agent(), {});
  sides.one.reset();
  ASSERT_EQ(sides.zero->send(1, 1, 100, INT64_C(50'000'000)), BP_OK);
  EXPECT_EQ(sides.zero->failure(1), "rank 1 did not confirm the message in time");
}

TEST(ZmqRpc, StrangersAreNotHeard) {
  Sides sides(agent(), {});
  const Card card(sides.store);
  zmq::context_t context;
  zmq::socket_t stranger(context, zmq::socket_type::dealer);
  stranger.set(zmq::sockopt::linger, 1000);
  stranger.connect(card.endpoint);
  const std::string mine = card.token;
  const std::string other(16, 'x');
  const std::vector<std::vector<std::string>> messages = {
      {""},
      {"BPR1"},
      {head(other, 0, 1, 1) + sizes({0})},
      {head(mine, 0, 0, 1)},
      {head(mine, 1, 1, 1) + sizes({0})},    // in the name of the receiver itself
      {head(mine, 2, 1, 1) + sizes({0})},    // of nobody
      {head(mine, -1, 1, 1) + sizes({0})},   // of nobody
      {head(mine, 0, 100, 1) + sizes({0})},  // what is said to be there is not
      {head(mine, 0, 1, 2)},
      {head(mine, 0, 1, 3) + sizes({8000})},
      {head(mine, 0, 1, 4) + sizes({100000}), "short"},
      {head(mine, 0, 1, 5) + sizes({UINT64_MAX}), "short"},
      {head(mine, 0, 1, 6) + sizes({0}), "more than was said"},
      {head(mine, 0, UINT32_MAX, 7)},
      {head(mine, 0, 0, 8, 4)},  // of no kind
  };
  for (const auto& frames : messages) {
    for (size_t i = 0; i < frames.size(); ++i) {
      stranger.send(zmq::buffer(frames[i]), i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  // Heard after all of these, which come along the same connection.
  stranger.send(zmq::buffer(head(mine, 0, 1, 100) + sizes({0}) + std::string(8, '\0')), zmq::send_flags::none);
  EXPECT_TRUE(sides.one->has_received(1));
  ASSERT_EQ(sides.one->send(0, 1, 100000), BP_OK);
  EXPECT_TRUE(sides.zero->has_received(1));
}

// Whoever leaves ends the agent, and the group with what is still in its queues, as soon as it has its last word back.
TEST(ZmqRpc, OverAGroupTheLastMessagesOfWhoLeavesArrive) {
  constexpr uint64_t kCount = 1000;  // more than is on its way at once
  Sides sides(builtin("process_group"), {}, uint64_t{1} << 32, agent());
  for (uint64_t i = 1; i <= kCount; ++i) ASSERT_EQ(sides.zero->send(1, i, 8000), BP_OK);
  ASSERT_EQ(sides.zero->send(1, 0, 0), BP_OK);
  EXPECT_TRUE(sides.zero->comes_to_hold(0));
  sides.zero.reset();
  EXPECT_TRUE(sides.one->has_received(kCount + 1));
}

// Rank 1 of three, the others of which are this test.
TEST(ZmqRpc, StrangersAreNotHeardWhereTheJobHasASecret) {
  const ScopedSecret secret;
  const auto store = core::make_inproc_store();
  std::unique_ptr<Side> side;
  std::thread starting([&] { side = std::make_unique<Side>(agent(), store, Place(1, 3)); });
  const Card card(store);
  const Keys zeros;
  const Keys twos;
  store->set("zmq/0", card.with_key(zeros.own), core::Deadline::never());
  store->set("zmq/2", card.with_key(twos.own), core::Deadline::never());
  starting.join();
  const auto call = [&card](int32_t from, uint64_t size) {
    return head(card.token, from, 1, 1) + sizes({size}) + std::string(24, '\0');
  };
  Stranger plain(card.endpoint, "", nullptr);
  plain.say(call(0, 1));
  EXPECT_FALSE(plain.let_in());
  const Keys others;
  Stranger unknown(card.endpoint, card.key, &others);
  unknown.say(call(0, 2));
  EXPECT_FALSE(unknown.let_in());
  Stranger zero(card.endpoint, card.key, &zeros);
  zero.say(call(2, 3));  // in the name of another
  zero.say(call(0, 4));
  EXPECT_TRUE(side->has_received(1));
  EXPECT_EQ(side->received_payloads(), std::vector<uint64_t>{4});
}

}  // namespace
}  // namespace backplane::test
