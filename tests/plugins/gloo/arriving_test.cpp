// SPDX-License-Identifier: Apache-2.0
//
// Receives of the plugin gloo that end while their message arrives, and others that wait behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "fake_peer.hpp"
#include "gloo_test.hpp"

namespace backplane::test {
namespace {

constexpr uint64_t kTag = 7;
constexpr size_t kSize = 100'000;
constexpr int64_t kTimeout = 2'000'000'000;  // ns: enough for the first part of a message

std::string message(char first) {
  std::string data(kSize, first);
  for (size_t i = 0; i < kSize; ++i) data[i] = static_cast<char>(first + static_cast<char>(i % 26));
  return data;
}

Preamble preamble() { return {.nbytes = sizeof(Preamble) + kSize, .opcode = kMessage, .slot = kTag, .length = kSize}; }

bool holds(const std::vector<char>& data, const std::string& expected) {
  return std::equal(data.begin(), data.end(), expected.begin(), expected.end());
}

// Receives with a timeout and expects that it expires.
void expect_timeout(Agent& agent) {
  std::vector<char> data(kSize);
  bp_op op = recv_op(1, kTag, data.data(), data.size());
  op.timeout_ns = kTimeout;
  bp_error err = fresh_error();
  EXPECT_EQ(agent.run(op, &err), BP_TIMEOUT) << err.text;
}

// The peer sends half of a message, and the rest after the receives but the last have timed out. Then the last has the
// message, and another receive gets the next message, which the last had requested.
void expect_handed_on(bool first_becomes_an_orphan) {
  MemoryHost host;
  skip_host_comparison(host);
  std::latch requested(1);
  std::latch timed_out(1);
  std::thread peer([&host, &requested, &timed_out] {
    const FakePeer fake(host);
    EXPECT_EQ(fake.receive().slot, kTag);
    const std::string first = message('a');
    fake.send(preamble());
    fake.send(first.substr(0, kSize / 2));
    requested.count_down();
    EXPECT_EQ(fake.receive().slot, kTag);
    timed_out.wait();
    fake.send(first.substr(kSize / 2));
    fake.send(preamble());
    fake.send(message('A'));
    fake.await_end();
  });
  {
    Agent agent(gloo(), host.table(), 0, 2);
    if (first_becomes_an_orphan) expect_timeout(agent);
    std::thread timed([&agent] { expect_timeout(agent); });
    requested.wait();
    if (first_becomes_an_orphan) std::this_thread::sleep_for(std::chrono::milliseconds(200));  // `timed` is the older
    std::vector<char> data(kSize);
    bp_work* const waiting = started(agent, recv_op(1, kTag, data.data(), data.size()));
    timed.join();
    timed_out.count_down();
    EXPECT_EQ(finished(agent, waiting), BP_OK);
    EXPECT_TRUE(holds(data, message('a')));
    expect_done(agent, recv_op(1, kTag, data.data(), data.size()));
    EXPECT_TRUE(holds(data, message('A')));
  }
  peer.join();
}

// A receive of 16 bytes must fail before the rest of its message has come.
void expect_too_short(Agent& agent, bp_work* work, std::array<char, 16>& data) {
  bp_error err = fresh_error();
  bp_work* const receive = work != nullptr ? work : started(agent, recv_op(1, kTag, data.data(), data.size()));
  EXPECT_EQ(finished(agent, receive, &err), BP_INVALID) << err.text;
  EXPECT_NE(std::string(err.text).find("a message of 100000 bytes from rank 1 does not fit the receive buffer of 16"),
            std::string::npos)
      << err.text;
}

// The peer sends half of a message. Its receive times out, and another one, which is too short, gets the message: the
// next one, or one that waits already.
void expect_refused_at_once(bool waits_already) {
  MemoryHost host;
  skip_host_comparison(host);
  std::latch requested(1);
  std::latch refused(1);
  std::thread peer([&host, &requested, &refused] {
    const FakePeer fake(host);
    EXPECT_EQ(fake.receive().slot, kTag);
    const std::string first = message('a');
    fake.send(preamble());
    fake.send(first.substr(0, kSize / 2));
    requested.count_down();
    refused.wait();
    fake.send(first.substr(kSize / 2));
    EXPECT_EQ(fake.receive().slot, kTag);
    fake.send(preamble());
    fake.send(message('A'));
    fake.await_end();
  });
  {
    Agent agent(gloo(), host.table(), 0, 2);
    std::array<char, 16> small;
    std::thread timed([&agent] { expect_timeout(agent); });
    requested.wait();
    bp_work* const waiting = waits_already ? started(agent, recv_op(1, kTag, small.data(), small.size())) : nullptr;
    timed.join();
    expect_too_short(agent, waiting, small);
    refused.count_down();
    std::vector<char> data(kSize);
    expect_done(agent, recv_op(1, kTag, data.data(), data.size()));
    EXPECT_TRUE(holds(data, message('A')));
  }
  peer.join();
}

TEST(Arriving, MessageGoesToTheReceiveThatWaits) { expect_handed_on(false); }

// The receive that times out has taken over the message of an earlier one.
TEST(Arriving, MessageOfAnOrphanGoesToTheReceiveThatWaits) { expect_handed_on(true); }

TEST(Arriving, AShortReceiveThatWaitsFailsAtOnce) { expect_refused_at_once(true); }

TEST(Arriving, AShortReceiveThatComesLaterFailsAtOnce) { expect_refused_at_once(false); }

}  // namespace
}  // namespace backplane::test
