// SPDX-License-Identifier: Apache-2.0
//
// Where the job has a secret, nobody but the group's ranks gets a word in.
#include "backplane/sdk/messenger.hpp"
#include "plugins/zmq/stranger.hpp"
#include "plugins/zmq/support.hpp"
#include "plugins/zmq/wire_copy.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

class ZmqSecure : public testing::Test {
 protected:
  void SetUp() override { exchange(); }
  void TearDown() override { exchange(); }

  void exchange() {
    for (const size_t size : {0, 10, 200000}) {
      const Bytes bytes = pattern(size, round_);
      bp_work* const sending = zero_.start(Rank::make_send(1, 1, bytes));
      EXPECT_EQ(one_.recv(0, 1, size).bytes, bytes);
      EXPECT_EQ(zero_.finish(sending), BP_OK);
      bp_work* const answering = one_.start(Rank::make_send(0, 1, bytes));
      EXPECT_EQ(zero_.recv(BP_ANY_SOURCE, 1, size).bytes, bytes);
      EXPECT_EQ(one_.finish(answering), BP_OK);
    }
    ++round_;
  }

  // Where a rank listens, and its public key.
  std::string endpoint(int rank) { return word(entry(rank), 0); }
  std::string local_endpoint(int rank) { return word(entry(rank), 1); }
  std::string public_key(int rank) { return word(entry(rank), 2); }
  std::string entry(int rank) { return stored(host_, "zmq/" + std::to_string(rank)); }

  MemoryHost host_{true};
  Rank zero_{host_, 0, 3, {{"transport", "ipc"}}};
  Rank one_{host_, 1, 3, {{"transport", "ipc"}}};
  uint32_t round_ = 0;
};

TEST_F(ZmqSecure, PublicKeysStandInTheStore) {
  for (const int rank : {0, 1}) {
    EXPECT_EQ(public_key(rank).size(), 40U) << entry(rank);
    EXPECT_EQ(stored(host_, "zmq/key/" + public_key(rank)), std::to_string(rank));
  }
  EXPECT_NE(public_key(0), public_key(1));
}

TEST_F(ZmqSecure, AStrangerWithoutAKey) {
  WireHeader hello;
  hello.token = std::stoull(stored(host_, "zmq/token"));
  for (const std::string& where : {endpoint(0), local_endpoint(0)}) {
    Stranger stranger(where, "", nullptr);
    stranger.say(hello.text());
    EXPECT_FALSE(stranger.let_in()) << where;
  }
  EXPECT_EQ(host_.logged().find("dropped"), std::string::npos) << "somebody read what a stranger said";
}

TEST_F(ZmqSecure, AStrangerWhoKnowsTheRanksKey) {
  WireHeader hello;
  hello.token = std::stoull(stored(host_, "zmq/token"));
  const Keys keys;
  for (const std::string& where : {endpoint(0), local_endpoint(0)}) {
    Stranger stranger(where, public_key(0), &keys);
    stranger.say(hello.text());
    EXPECT_FALSE(stranger.let_in()) << where;
  }
  EXPECT_EQ(host_.logged().find("dropped"), std::string::npos) << "somebody read what a stranger said";
}

TEST_F(ZmqSecure, AStrangerWhoGuessesTheRanksKey) {
  const Keys keys;
  const Keys guessed;
  Stranger stranger(endpoint(0), guessed.own, &keys);
  stranger.say("anything");
  EXPECT_FALSE(stranger.let_in());
}

// Rank 2, which is of the group, says that it is rank 1, which has not spoken to rank 0 in this world.
TEST(ZmqSecureRanks, NoRankSpeaksForAnother) {
  MemoryHost host(true);
  Rank zero(host, 0, 3);
  const std::string entry = stored(host, "zmq/0");
  const Keys keys;
  host.table()->store_set(host.table()->ctx, (std::string("zmq/key/") + keys.own).c_str(), "2", 1, nullptr);
  Stranger two(word(entry, 0), word(entry, 2), &keys);
  WireHeader hello;
  hello.token = std::stoull(stored(host, "zmq/token"));
  hello.source = 1;
  hello.value = 0;
  two.say(hello.text());
  EXPECT_TRUE(two.let_in());
  Bytes byte(1);
  bp_work* const receiving = zero.start(Rank::make_recv(BP_ANY_SOURCE, 7, byte));
  // As itself it is heard, behind the lie.
  hello.source = 2;
  two.say(hello.text());
  WireHeader frame = hello;
  frame.kind = WireHeader::kFrame;
  const sdk::Messenger::Head eager = {1, 1, 7, 0, 1};  // with one byte and tag 7
  two.say(frame.text().append(reinterpret_cast<const char*>(&eager), sizeof eager).append("!"));
  EXPECT_EQ(zero.finish(receiving), BP_OK);
  EXPECT_EQ(byte[0], '!');
  EXPECT_TRUE(eventually([&] { return host.logged().find("in the name of another rank") != std::string::npos; }))
      << host.logged();
}

}  // namespace
}  // namespace backplane::test
