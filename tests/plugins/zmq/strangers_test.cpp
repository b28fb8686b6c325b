// SPDX-License-Identifier: Apache-2.0
//
// Whatever else talks to a rank's port disturbs nobody.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <zmq.hpp>

#include "plugins/zmq/support.hpp"
#include "plugins/zmq/wire_copy.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

// Two ranks that have spoken, and can do so again.
class ZmqStrangers : public testing::Test {
 protected:
  void SetUp() override { exchange(); }
  void TearDown() override { exchange(); }

  void exchange() {
    for (const size_t size : {10, 200000}) {
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

  MemoryHost host_;
  Rank zero_{host_, 0, 2, {{"transport", "ipc"}}};
  Rank one_{host_, 1, 2};
  uint32_t round_ = 0;
};

int dial_tcp(const std::string& endpoint) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return descriptor;
}

TEST_F(ZmqStrangers, RandomBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    const int descriptor = dial_tcp(word(stored(host_, "zmq/0"), 0));
    Bytes bytes(1 + random() % 4000);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    // Some begin like a real greeting.
    if (i % 2 == 0 && bytes.size() > 10) bytes[0] = 0xff, bytes[9] = 0x7f;
    EXPECT_GT(::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    close(descriptor);
    exchange();
  }
}

// Frames of all wrong kinds by way of a real DEALER. Each probe ends with one that must be reported, so that the test
// knows when all have been looked at.
class Stranger {
 public:
  explicit Stranger(const std::string& endpoint) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 5000);
    socket_.connect(endpoint);
  }
  void say(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      socket_.send(zmq::buffer(frames[i]), i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

TEST_F(ZmqStrangers, WrongFrames) {
  for (const int endpoint : {0, 1}) {
    Stranger stranger(word(stored(host_, "zmq/0"), endpoint));
    stranger.say({""});
    stranger.say({"", "", "", "", ""});
    stranger.say({std::string(3, 'x')});
    stranger.say({std::string(64, '\0')});
    stranger.say({std::string(100000, 'y'), "z"});
    WireHeader header;  // of another session
    stranger.say({header.text()});
  }  // its context waits until all has been taken
  exchange();
  EXPECT_TRUE(eventually([&] { return host_.logged().find("dropped a malformed message") != std::string::npos; }))
      << host_.logged();
}

// Somebody who knows the token but lies about the rest.
TEST_F(ZmqStrangers, LiesWithTheRightToken) {
  const uint64_t token = std::stoull(stored(host_, "zmq/token"));
  {
    Stranger stranger(word(stored(host_, "zmq/0"), 0));
    for (uint8_t kind = 0; kind < 12; ++kind) {
      if (kind == WireHeader::kHello) continue;
      for (const int32_t source : {-1, 0, 1, 2, 1 << 30}) {
        WireHeader header;
        header.token = token;
        header.kind = kind;
        header.source = source;
        header.value = 1;
        stranger.say({header.text()});
        stranger.say({header.text(), std::string(100, 'd')});
        stranger.say({header.text() + "1234567"});
        stranger.say({header.text() + std::string(32, '\1')});
        stranger.say({header.text() + std::string(32, '\xff'), std::string(100, 'd')});
      }
    }
  }
  exchange();
  EXPECT_TRUE(eventually([&] { return host_.logged().find("zmq: dropped a ") != std::string::npos; }))
      << "nobody looked at the lies: " << host_.logged();
}

// A rank of this job that took this one for another: nothing of what it says is delivered.
TEST_F(ZmqStrangers, MessagesForAnotherRank) {
  WireHeader hello;
  hello.token = std::stoull(stored(host_, "zmq/token"));
  hello.source = 1;
  hello.value = 5;
  {
    Stranger stranger(word(stored(host_, "zmq/0"), 0));
    stranger.say({hello.text()});
  }
  exchange();
  EXPECT_TRUE(eventually([&] {
    return host_.logged().find("dropped a message for another rank") != std::string::npos;
  })) << host_.logged();
}

// Somebody who has overheard how a rank introduced itself does not become that rank.
TEST_F(ZmqStrangers, AHelloThatIsSaidAgain) {
  WireHeader hello;
  hello.token = std::stoull(stored(host_, "zmq/token"));
  hello.source = 1;
  hello.value = 0;
  {
    Stranger stranger(word(stored(host_, "zmq/0"), 0));
    stranger.say({hello.text()});
  }
  exchange();
  EXPECT_TRUE(eventually([&] { return host_.logged().find("in the name of another rank") != std::string::npos; }))
      << host_.logged();
}

// A connection that announces a frame beyond the limit is closed, not given memory.
TEST_F(ZmqStrangers, AHugeFrame) {
  {
    Stranger stranger(word(stored(host_, "zmq/1"), 0));
    stranger.say({std::string((64 << 20) + 1, 'h')});
  }
  exchange();
  EXPECT_EQ(host_.logged().find("dropped"), std::string::npos) << "it was received: " << host_.logged();
}

}  // namespace
}  // namespace backplane::test
