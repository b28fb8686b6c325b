// SPDX-License-Identifier: Apache-2.0
//
// Connections of the plugin gloo are opened when they are first used, by one rank or by both at once.
#include <dirent.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fake_peer.hpp"
#include "gloo_test.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

constexpr uint64_t kFirstTag = 7;

// The ends of TCP connections in this process, which all ranks of a test share.
int connected_sockets() {
  int count = 0;
  DIR* const descriptors = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(descriptors)) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    const int fd = std::atoi(entry->d_name);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) ++count;
  }
  ::closedir(descriptors);
  return count;
}

// The ends of connections once all ranks of a group have performed `op`, and before it.
void count_connections(int32_t world, const std::string& algorithm, const std::function<void(Agent&, int32_t)>& op,
                       int* before, int* after) {
  std::barrier all(world);
  on_group(world,
           [&](Agent& agent, int32_t rank) {
             if (rank == 0) *before = connected_sockets();
             all.arrive_and_wait();
             op(agent, rank);
             all.arrive_and_wait();
             if (rank == 0) *after = connected_sockets();
             all.arrive_and_wait();  // a rank that leaves closes its connections
           },
           {{"algorithm", algorithm}});
}

TEST(OnDemand, ARingOpensTwoConnectionsPerRank) {
  static constexpr int32_t kRing = 24;
  int before = -1;
  int after = -1;
  const auto ring = [](Agent& agent, int32_t) {
    std::vector<int32_t> data(1000, 1);
    bp_op op = make_op(BP_ALL_REDUCE, BP_I32);
    op.flags = BP_OP_SYNC;
    op.input = op.output = span(data);
    expect_done(agent, op);
    EXPECT_EQ(data, std::vector<int32_t>(1000, kRing));
  };
  count_connections(kRing, "ring", ring, &before, &after);
  EXPECT_EQ(before, 0);
  EXPECT_EQ(after, 2 * kRing);
}

TEST(OnDemand, ATreeAndADisseminationOpenLogarithmicallyMany) {
  constexpr int32_t kWorld = 16;
  int before = -1;
  int after = -1;
  const auto tree = [](Agent& agent, int32_t) {
    bp_op op = make_op(BP_BARRIER);
    op.flags = BP_OP_SYNC;
    expect_done(agent, op);
    int32_t value = 5;
    op = make_op(BP_BROADCAST, BP_I32);
    op.flags = BP_OP_SYNC;
    op.seq = 1;
    op.root = 0;
    op.output = span(&value, 1);
    expect_done(agent, op);
  };
  count_connections(kWorld, "auto", tree, &before, &after);
  EXPECT_EQ(before, 0);
  // The dissemination connects each rank to those at the distances 1, 2, 4 and 8 on both sides, 7 in all. The tree uses
  // some of the same, and others.
  EXPECT_LE(after, kWorld * 9);
  EXPECT_GE(after, kWorld * 7);
}

// All pairs of ranks use each other for the first time at once, in both directions.
TEST(OnDemand, SimultaneousFirstMessagesAllArrive) {
  constexpr int32_t kWorld = 8;
  constexpr int kGroups = 12;
  for (int group = 0; group < kGroups; ++group) {
    std::barrier all(kWorld);
    on_group(kWorld, [&all](Agent& agent, int32_t rank) {
      std::vector<int32_t> out(kWorld, rank);
      std::vector<int32_t> in(kWorld, -1);
      std::vector<bp_work*> works;
      all.arrive_and_wait();
      for (int32_t step = 1; step < kWorld; ++step) {
        const int32_t peer = (rank + step) % kWorld;
        const auto at = static_cast<size_t>(peer);
        works.push_back(started(agent, send_op(peer, kFirstTag, &out[at], sizeof(int32_t))));
        works.push_back(started(agent, recv_op(peer, kFirstTag, &in[at], sizeof(int32_t))));
      }
      for (bp_work* work : works) EXPECT_EQ(finished(agent, work), BP_OK);
      for (int32_t peer = 0; peer < kWorld; ++peer) {
        EXPECT_EQ(in[static_cast<size_t>(peer)], peer == rank ? -1 : peer);
      }
      all.arrive_and_wait();
    });
  }
}

// Two ranks, so that nothing delays either: each sends several messages before it receives.
TEST(OnDemand, SimultaneousFirstMessagesOfTwoRanksKeepTheirOrder) {
  for (int group = 0; group < 100; ++group) {
    std::barrier both(2);
    on_group(2, [&both](Agent& agent, int32_t rank) {
      std::array<int32_t, 4> out = {1, 2, 3, 4};
      std::array<int32_t, 4> in = {};
      std::vector<bp_work*> works;
      both.arrive_and_wait();
      for (int32_t& value : out) works.push_back(started(agent, send_op(1 - rank, kFirstTag, &value, sizeof(value))));
      for (int32_t& value : in) expect_done(agent, recv_op(1 - rank, kFirstTag, &value, sizeof(value)));
      for (bp_work* work : works) EXPECT_EQ(finished(agent, work), BP_OK);
      EXPECT_EQ(in, out);
      both.arrive_and_wait();
    });
  }
}

// A socket in the place of the rank that the agent connects to.
class SilentListener {
 public:
  SilentListener() : socket_(socket_with_limit()) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)), 0);
    EXPECT_EQ(::listen(socket_.get(), 4), 0);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address_), &size), 0);
  }
  base::Descriptor accept() const {
    base::Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(socket) << std::strerror(errno);
    const timeval limit = {kWaitLimit.count(), 0};
    EXPECT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    return socket;
  }
  PublishedEndpoint endpoint() const {
    PublishedEndpoint endpoint;
    endpoint.token.fill('t');
    endpoint.answer.fill('a');
    endpoint.world_size = 2;
    endpoint.set_address(address_);
    return endpoint;
  }
  void close() { socket_.reset(); }

 private:
  base::Descriptor socket_;
  sockaddr_in address_ = {};
};

// A rank of the plugin and one that a test plays.
struct Played {
  explicit Played(int32_t agents_rank) : rank(agents_rank) {
    skip_host_comparison(host);
    publish(host, 1 - rank, listener.endpoint());
    agent.emplace(gloo(), host.table(), rank, 2);
  }
  bp_op receive(char* byte, int64_t timeout_ns) const {
    bp_op op = recv_op(1 - rank, kFirstTag, byte, 1);
    op.timeout_ns = timeout_ns;
    return op;
  }

  const int32_t rank;
  MemoryHost host;
  SilentListener listener;
  std::optional<Agent> agent;
};

// Returns once the rank has read the hellos that were sent before: it reads those of older connections first.
void await_hellos_read(const PublishedEndpoint& of) {
  const FakePeer stranger(connected_client(of.socket_address()));
  stranger.send(std::string(20, 'x'));
  stranger.await_end();
}

constexpr int64_t kShort = 300'000'000;             // ns
constexpr int64_t kLong = INT64_C(60'000'000'000);  // ns

TEST(OnDemand, TheTimeoutOfTheOperationBoundsTheConnecting) {
  Played played(0);
  char byte = 0;
  bp_error err = fresh_error();
  EXPECT_EQ(played.agent->run(played.receive(&byte, kShort), &err), BP_TIMEOUT) << err.text;
  EXPECT_EQ(err.peer_rank, 1);
  bp_op send = send_op(1, kFirstTag, &byte, 1);
  send.timeout_ns = kShort;
  EXPECT_EQ(played.agent->run(send, &err), BP_TIMEOUT) << err.text;
}

TEST(OnDemand, ARankThatHasLeftRefuses) {
  Played played(0);
  played.listener.close();
  char byte = 0;
  for (const bp_op& op : {played.receive(&byte, kLong), send_op(1, kFirstTag, &byte, 1)}) {
    bp_error err = fresh_error();
    EXPECT_EQ(played.agent->run(op, &err), BP_PEER_LOST);
    EXPECT_EQ(err.peer_rank, 1);
    EXPECT_NE(std::string(err.text).find("rank 1 is lost: cannot connect: Connection refused (it listens on"),
              std::string::npos)
        << err.text;
  }
}

// It is killed between the connection and its answer.
TEST(OnDemand, ARankThatDiesDuringTheHandshakeIsLost) {
  for (const int32_t rank : {0, 1}) {
    Played played(rank);
    std::thread killed(
        [&played, rank] { FakePeer(played.listener.accept()).await_hello(played.listener.endpoint().token, rank); });
    char byte = 0;
    bp_error err = fresh_error();
    EXPECT_EQ(played.agent->run(played.receive(&byte, kLong), &err), BP_PEER_LOST);
    EXPECT_EQ(err.peer_rank, 1 - rank) << err.text;
    killed.join();
  }
}

TEST(OnDemand, AnotherProcessAtTheAddressIsNoPeer) {
  Played played(0);
  std::thread other([&played] {
    const FakePeer fake(played.listener.accept());
    fake.send("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
    fake.await_end();
  });
  char byte = 0;
  bp_error err = fresh_error();
  EXPECT_EQ(played.agent->run(played.receive(&byte, kLong), &err), BP_PEER_LOST);
  EXPECT_NE(std::string(err.text).find("another process listens at its address"), std::string::npos) << err.text;
  other.join();
}

TEST(OnDemand, AnAbortEndsAFirstConnect) {
  Played played(0);
  std::thread aborter([&played] {
    const FakePeer half_open(played.listener.accept());
    bp_error why = fresh_error();
    bp_error_set(&why, BP_PEER_LOST, 0, 1, "rank 1 crashed");
    played.agent->api().abort(played.agent->self(), &why);
    half_open.await_end();  // the attempt is given up
  });
  char byte = 0;
  bp_error err = fresh_error();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(played.agent->run(played.receive(&byte, kLong), &err), BP_PEER_LOST);
  EXPECT_NE(std::string(err.text).find("rank 1 crashed"), std::string::npos) << err.text;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  aborter.join();
}

TEST(OnDemand, AnAbortedRankRefusesConnections) {
  Played played(0);
  bp_error why = fresh_error();
  bp_error_set(&why, BP_PEER_LOST, 0, 1, "rank 1 crashed");
  played.agent->api().abort(played.agent->self(), &why);
  const PublishedEndpoint to = endpoint_of(played.host, 0);
  const FakePeer fake(connected_client(to.socket_address()));
  fake.say_hello(to, 1);
  fake.await_end();
}

TEST(OnDemand, EndsWithAnAttemptToConnect) {
  Played played(0);
  char byte = 0;
  bp_work* const work = started(*played.agent, played.receive(&byte, kLong));
  const FakePeer half_open(played.listener.accept());
  played.agent->api().work_cancel(played.agent->self(), work);
  EXPECT_EQ(finished(*played.agent, work), BP_CANCELLED);
  played.agent.reset();
  half_open.await_end();
}

// `peer`, whose connection is in use, sends the byte that `work` receives.
void expect_message_over(const FakePeer& peer, Agent& agent, bp_work* work, const char& byte) {
  EXPECT_EQ(peer.receive().slot, kFirstTag);
  peer.send(Preamble{.nbytes = sizeof(Preamble) + 1, .opcode = kMessage, .slot = kFirstTag, .length = 1});
  peer.send("x");
  EXPECT_EQ(finished(agent, work), BP_OK);
  EXPECT_EQ(byte, 'x');
}

// Both connect at once, and the lower rank's connection is used: the played rank has answered it.
TEST(OnDemand, TheLowerRankKeepsItsConnection) {
  Played played(0);
  char byte = 0;
  bp_work* const work = started(*played.agent, played.receive(&byte, kLong));
  const FakePeer kept(played.listener.accept());
  kept.await_hello(played.listener.endpoint().token, 0);
  const PublishedEndpoint to = endpoint_of(played.host, 0);
  const FakePeer spare(connected_client(to.socket_address()));
  spare.say_hello(to, 1);
  await_hellos_read(to);
  const std::array<char, 16> answer = played.listener.endpoint().answer;
  kept.send(std::string(answer.data(), answer.size()));
  spare.await_end();
  expect_message_over(kept, *played.agent, work, byte);
}

// The lower rank's own connection fails: it uses the one that the peer has opened.
TEST(OnDemand, TheLowerRankFallsBackToTheOtherConnection) {
  Played played(0);
  char byte = 0;
  bp_work* const work = started(*played.agent, played.receive(&byte, kLong));
  const PublishedEndpoint to = endpoint_of(played.host, 0);
  const FakePeer spare(connected_client(to.socket_address()));
  {
    const FakePeer failing(played.listener.accept());
    failing.await_hello(played.listener.endpoint().token, 0);
    spare.say_hello(to, 1);
    await_hellos_read(to);
  }
  spare.await_answer(to);
  expect_message_over(spare, *played.agent, work, byte);
}

TEST(OnDemand, TheHigherRankTakesTheConnectionOfTheLower) {
  Played played(1);
  char byte = 0;
  bp_work* const work = started(*played.agent, played.receive(&byte, kLong));
  const FakePeer dropped(played.listener.accept());
  dropped.await_hello(played.listener.endpoint().token, 1);
  const PublishedEndpoint to = endpoint_of(played.host, 1);
  const FakePeer used(connected_client(to.socket_address()));
  used.say_hello(to, 0);
  used.await_answer(to);
  dropped.await_end();
  expect_message_over(used, *played.agent, work, byte);
}

}  // namespace
}  // namespace backplane::test
