// SPDX-License-Identifier: Apache-2.0
//
// A peer of the plugin gloo that sends what gloo would not.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fake_peer.hpp"
#include "gloo_test.hpp"

namespace backplane::test {
namespace {

// The error of rank 0's receive of 16 bytes with tag 7, while the peer executes `behave` after it was asked for the
// message.
std::string error_of_receive(int32_t expected, const std::function<void(const FakePeer&)>& behave) {
  MemoryHost host;
  std::thread peer([&host, &behave] {
    const FakePeer fake(host);
    EXPECT_EQ(fake.receive().slot, 7U);
    behave(fake);
    fake.await_end();
  });
  bp_error err = fresh_error();
  {
    skip_host_comparison(host);
    Agent agent(gloo(), host.table(), 0, 2);
    std::array<char, 16> data;
    EXPECT_EQ(agent.run(recv_op(1, 7, data.data(), data.size()), &err), expected);
  }
  peer.join();
  return err.text;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// The peer is slow, and others connect between its connection and its hello.
TEST(SlowPeer, IsAdmittedBehindManyOtherClients) {
  MemoryHost host;
  skip_host_comparison(host);
  std::thread peer([&host] {
    std::vector<base::Descriptor> idle;
    const FakePeer fake(host, [&idle](const sockaddr_in& to) {
      for (int i = 0; i < 15; ++i) idle.push_back(connected_client(to));
      const base::Descriptor last = connected_client(to);
      EXPECT_GT(::send(last.get(), std::string(100, 'x').data(), 100, MSG_NOSIGNAL), 0);
      char byte = 0;
      const ssize_t got = ::recv(last.get(), &byte, 1, 0);  // closed, so those before it have been accepted
      EXPECT_TRUE(got == 0 || (got < 0 && errno == ECONNRESET)) << "not closed in time";
    });
    fake.await_end();
  });
  EXPECT_NO_THROW(Agent(gloo(), host.table(), 0, 2));
  peer.join();
}

TEST(HostilePeer, DataForABufferEndItsConnection) {
  const std::string text =
      error_of_receive(BP_PEER_LOST, [](const FakePeer& peer) { peer.send(Preamble{.opcode = kRegisteredBuffer}); });
  expect_part(text, "rank 1 is lost: its connection has closed (it sent data that are no message)");
}

TEST(HostilePeer, AMessageThatWasNotRequestedEndsItsConnection) {
  const std::string text = error_of_receive(BP_PEER_LOST, [](const FakePeer& peer) {
    peer.send(Preamble{.nbytes = sizeof(Preamble) + kTebibyte, .opcode = kMessage, .slot = 8, .length = kTebibyte});
  });
  expect_part(text, "rank 1 is lost: its connection has closed (it sent a message that was not requested)");
}

// No byte of the message ever arrives.
TEST(HostilePeer, AnAnnouncedMessageThatIsTooLongIsRefusedAtOnce) {
  const std::string text = error_of_receive(BP_INVALID, [](const FakePeer& peer) {
    peer.send(Preamble{.opcode = kSendReady, .slot = 7, .length = kTebibyte});
    peer.send(Preamble{.nbytes = sizeof(Preamble) + kTebibyte, .opcode = kMessage, .slot = 7, .length = kTebibyte});
  });
  expect_part(text, "a message of 1099511627776 bytes from rank 1 does not fit the receive buffer of 16 bytes");
}

// A cancelled receive keeps its message. This one announces a TiB and sends a byte.
TEST(HostilePeer, AMessageThatIsKeptTakesNoMemoryBeforeItArrives) {
  MemoryHost host;
  skip_host_comparison(host);
  std::thread peer([&host] {
    const FakePeer fake(host);
    EXPECT_EQ(fake.receive().slot, 7U);  // of the receive that times out
    EXPECT_EQ(fake.receive().slot, 9U);
    fake.send(Preamble{.nbytes = sizeof(Preamble) + kTebibyte, .opcode = kMessage, .slot = 7, .length = kTebibyte});
    fake.send(std::string(1, 'x'));
    fake.await_end();
  });
  {
    Agent agent(gloo(), host.table(), 0, 2);
    std::array<char, 16> data;
    for (const uint64_t tag : {7, 9}) {
      bp_op op = recv_op(1, tag, data.data(), data.size());
      op.timeout_ns = 200'000'000;
      bp_error err = fresh_error();
      EXPECT_EQ(agent.run(op, &err), BP_TIMEOUT) << err.text;
    }
    EXPECT_EQ(agent.run(recv_op(1, 7, data.data(), data.size())), BP_INVALID);
  }
  peer.join();
}

}  // namespace
}  // namespace backplane::test
