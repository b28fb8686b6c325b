// SPDX-License-Identifier: Apache-2.0
//
// In a job with a secret only ranks of the group are accepted.
#include "backplane/sdk/messenger.hpp"
#include "plugins/zmq/raw_client.hpp"
#include "plugins/zmq/support.hpp"
#include "plugins/zmq/wire_copy.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

class ZmqSecure : public testing::Test {
 protected:
  void SetUp() override { exchange(); }
  void TearDown() override { exchange(); }

  void exchange() { exchange_messages(zero_, one_, round_++); }

  // The parts of a rank's entry in the store.
  std::string endpoint(int rank) { return word(entry(rank), 0); }
  std::string local_endpoint(int rank) { return word(entry(rank), 1); }
  std::string public_key(int rank) { return word(entry(rank), 2); }
  std::string entry(int rank) { return stored(host_, "zmq/" + std::to_string(rank)); }

  MemoryHost host_{true};
  Rank zero_{host_, 0, 3, {{"transport", "ipc"}}};
  Rank one_{host_, 1, 3, {{"transport", "ipc"}}};
  uint32_t round_ = 0;
};

TEST_F(ZmqSecure, PublicKeysAreInTheStore) {
  for (const int rank : {0, 1}) {
    EXPECT_EQ(public_key(rank).size(), 40U) << entry(rank);
    EXPECT_EQ(stored(host_, "zmq/key/" + public_key(rank)), std::to_string(rank));
  }
  EXPECT_NE(public_key(0), public_key(1));
}

TEST_F(ZmqSecure, AClientWithoutAKeyIsRefused) {
  WireHeader hello;
  hello.token = std::stoull(stored(host_, "zmq/token"));
  for (const std::string& where : {endpoint(0), local_endpoint(0)}) {
    RawClient client(where, "", nullptr);
    client.send({hello.text()});
    EXPECT_FALSE(client.is_accepted()) << where;
  }
  EXPECT_EQ(host_.logged().find("dropped"), std::string::npos) << "the message of a refused client was read";
}

TEST_F(ZmqSecure, AClientWithAnUnknownKeyIsRefused) {
  WireHeader hello;
  hello.token = std::stoull(stored(host_, "zmq/token"));
  const Keys keys;
  for (const std::string& where : {endpoint(0), local_endpoint(0)}) {
    RawClient client(where, public_key(0), &keys);
    client.send({hello.text()});
    EXPECT_FALSE(client.is_accepted()) << where;
  }
  EXPECT_EQ(host_.logged().find("dropped"), std::string::npos) << "the message of a refused client was read";
}

TEST_F(ZmqSecure, AClientWithAWrongServerKeyIsRefused) {
  const Keys keys;
  const Keys guessed;
  RawClient client(endpoint(0), guessed.own, &keys);
  client.send({"anything"});
  EXPECT_FALSE(client.is_accepted());
}

// Rank 2 impersonates rank 1, which has not connected to rank 0.
TEST(ZmqSecureRanks, ARankCannotImpersonateAnother) {
  MemoryHost host(true);
  Rank zero(host, 0, 3);
  const std::string entry = stored(host, "zmq/0");
  const Keys keys;
  host.table()->store_set(host.table()->ctx, (std::string("zmq/key/") + keys.own).c_str(), "2", 1, nullptr);
  RawClient two(word(entry, 0), word(entry, 2), &keys);
  WireHeader hello;
  hello.token = std::stoull(stored(host, "zmq/token"));
  hello.source = 1;
  hello.value = 0;
  two.send({hello.text()});
  EXPECT_TRUE(two.is_accepted());
  Bytes byte(1);
  bp_work* const receiving = zero.start(Rank::make_recv(BP_ANY_SOURCE, 7, byte));
  // Its own messages are received.
  hello.source = 2;
  two.send({hello.text()});
  WireHeader frame = hello;
  frame.kind = WireHeader::kFrame;
  const sdk::Messenger::Head eager = {1, 1, 7, 0, 1};  // with one byte and tag 7
  two.send({frame.text().append(reinterpret_cast<const char*>(&eager), sizeof eager).append("!")});
  EXPECT_EQ(zero.finish(receiving), BP_OK);
  EXPECT_EQ(byte[0], '!');
  EXPECT_TRUE(eventually([&] { return host.logged().find("in the name of another rank") != std::string::npos; }))
      << host.logged();
}

}  // namespace
}  // namespace backplane::test
