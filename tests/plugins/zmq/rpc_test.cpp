// SPDX-License-Identifier: Apache-2.0
//
// The RPC agent by itself: lost peers, unconfirmed messages, clients outside the job.
#include "rpc/test_agent.hpp"

#include <sys/socket.h>

#include <cstring>
#include <zmq.hpp>

#include "plugins/zmq/raw_client.hpp"
#include "support/agents.hpp"
#include "support/secret.hpp"

namespace backplane::test {
namespace {

const bp_backend& agent() { return open_backend(ZMQ_PLUGIN, "zmq"); }

// A worker's entry in the store: its token, the endpoint of its socket and its public key.
struct Entry {
  explicit Entry(const std::shared_ptr<core::Store>& store, int32_t rank = 1) {
    text = store->get("zmq/" + std::to_string(rank), core::Deadline::after(INT64_C(20'000'000'000)));
    token = text.substr(0, 16);
    const size_t begin = text.find("tcp://");
    endpoint = text.substr(begin, text.find(' ', begin) - begin);
    key = text.substr(text.rfind(' ') + 1);
  }
  // The same entry with another key.
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

TEST(ZmqRpc, ALostPeerIsReported) {
  TestAgents sides(agent(), {{"connect_timeout", "1s"}});
  ASSERT_EQ(sides.zero->send(1, 1, 100000), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
  sides.one.reset();
  ASSERT_EQ(sides.zero->send(1, 2, 100000), BP_OK);
  EXPECT_EQ(sides.zero->failure(2).find("rank 1 is lost: no answer at tcp://127.0.0.1:"), 0U);
  EXPECT_TRUE(sides.zero->reports_loss_of(1));
  EXPECT_EQ(sides.zero->send(1, 3, 100000), BP_PEER_LOST);
}

// A lost peer that returns does not know that replies to it were dropped.
TEST(ZmqRpc, APeerThatReturnsIsReportedAgain) {
  TestAgents sides(agent(), {{"connect_timeout", "50ms"}});
  sides.one.reset();
  ASSERT_EQ(sides.zero->send(1, 1, 100), BP_OK);
  ASSERT_TRUE(sides.zero->reports_loss_of(1));
  const Entry entry(sides.store, 0);
  RawClient returned(entry.endpoint, entry.token);
  returned.send({head(entry.token, 1, 1, 1) + sizes({0}) + std::string(8, '\0')});
  EXPECT_TRUE(sides.zero->has_received(1));
  EXPECT_TRUE(sides.zero->reports_loss_of(1, 2));
}

TEST(ZmqRpc, AnUnconfirmedMessageTimesOut) {
  TestAgents sides(agent(), {});
  sides.one.reset();
  ASSERT_EQ(sides.zero->send(1, 1, 100, INT64_C(50'000'000)), BP_OK);
  EXPECT_EQ(sides.zero->failure(1), "rank 1 did not confirm the message in time");
}

TEST(ZmqRpc, MessagesFromOutsideTheJobAreDropped) {
  TestAgents sides(agent(), {});
  const Entry entry(sides.store);
  RawClient client(entry.endpoint, entry.token);
  const std::string mine = entry.token;
  const std::string other(16, 'x');
  const std::vector<std::vector<std::string>> messages = {
      {""},
      {"BPR1"},
      {head(other, 0, 1, 1) + sizes({0})},
      {head(mine, 0, 0, 1)},
      {head(mine, 1, 1, 1) + sizes({0})},    // from the receiver itself
      {head(mine, 2, 1, 1) + sizes({0})},    // no such rank
      {head(mine, -1, 1, 1) + sizes({0})},   // no such rank
      {head(mine, 0, 100, 1) + sizes({0})},  // too few sizes
      {head(mine, 0, 1, 2)},
      {head(mine, 0, 1, 3) + sizes({8000})},
      {head(mine, 0, 1, 4) + sizes({100000}), "short"},
      {head(mine, 0, 1, 5) + sizes({UINT64_MAX}), "short"},
      {head(mine, 0, 1, 6) + sizes({0}), "an excess frame"},
      {head(mine, 0, UINT32_MAX, 7)},
      {head(mine, 0, 0, 8, 4)},  // no such kind
  };
  for (const auto& frames : messages) client.send(frames);
  // Valid, and received after all of these.
  client.send({head(mine, 0, 1, 100) + sizes({0}) + std::string(8, '\0')});
  EXPECT_TRUE(sides.one->has_received(1));
  ASSERT_EQ(sides.one->send(0, 1, 100000), BP_OK);
  EXPECT_TRUE(sides.zero->has_received(1));
}

// A worker that leaves aborts the group, with its queues, once its goodbye is released.
TEST(ZmqRpc, OverAGroupTheLastMessagesOfALeavingWorkerArrive) {
  constexpr uint64_t kCount = 1000;  // more than can be in transit
  TestAgents sides(builtin("process_group"), {}, uint64_t{1} << 32, agent());
  for (uint64_t i = 1; i <= kCount; ++i) ASSERT_EQ(sides.zero->send(1, i, 8000), BP_OK);
  ASSERT_EQ(sides.zero->send(1, 0, 0), BP_OK);
  EXPECT_TRUE(sides.zero->holds_messages(0));
  sides.zero.reset();
  EXPECT_TRUE(sides.one->has_received(kCount + 1));
}

// Rank 1 of three; the test is the others.
TEST(ZmqRpc, MessagesFromOutsideASecureJobAreDropped) {
  const ScopedSecret secret;
  const auto store = core::make_inproc_store();
  std::unique_ptr<TestAgent> side;
  std::thread starting([&] { side = std::make_unique<TestAgent>(agent(), store, RankInWorld(1, 3)); });
  const Entry entry(store);
  const Keys zeros;
  const Keys twos;
  store->set("zmq/0", entry.with_key(zeros.own), core::Deadline::never());
  store->set("zmq/2", entry.with_key(twos.own), core::Deadline::never());
  starting.join();
  const auto call = [&entry](int32_t from, uint64_t size) {
    return head(entry.token, from, 1, 1) + sizes({size}) + std::string(24, '\0');
  };
  RawClient plain(entry.endpoint, "", nullptr);
  plain.send({call(0, 1)});
  EXPECT_FALSE(plain.is_accepted());
  const Keys others;
  RawClient unknown(entry.endpoint, entry.key, &others);
  unknown.send({call(0, 2)});
  EXPECT_FALSE(unknown.is_accepted());
  RawClient zero(entry.endpoint, entry.key, &zeros);
  zero.send({call(2, 3)});  // impersonates rank 2
  zero.send({call(0, 4)});
  EXPECT_TRUE(side->has_received(1));
  EXPECT_EQ(side->received_payloads(), std::vector<uint64_t>{4});
}

}  // namespace
}  // namespace backplane::test
