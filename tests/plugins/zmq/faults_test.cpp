// SPDX-License-Identifier: Apache-2.0
//
// Ranks that die, leave, abort, time out or cancel.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "plugins/zmq/support.hpp"
#include "support/descriptor_limit.hpp"

namespace backplane::test {
namespace {

using Clock = std::chrono::steady_clock;

// Rank 1 in another process, see peer.cpp.
class Process {
 public:
  explicit Process(MemoryHost& host) {
    int input[2];
    int output[2];
    if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    const std::string token = stored(host, "zmq/token");
    const std::string endpoint = stored(host, "zmq/0");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(input[0], 0);
      dup2(output[1], 1);
      execl(ZMQ_PEER, ZMQ_PEER, ZMQ_PLUGIN, token.c_str(), endpoint.c_str(), nullptr);
      _exit(127);
    }
    close(input[0]);
    close(output[1]);
    input_ = input[1];
    std::string line;
    for (char c = 0; read(output[0], &c, 1) == 1 && c != '\n';) line += c;
    close(output[0]);
    const bp_host& table = *host.table();
    table.store_set(table.ctx, "zmq/1", line.data(), line.size(), nullptr);
    table.store_set(table.ctx, ("zmq/key/" + word(line, 2)).c_str(), "1", 1, nullptr);
    if (write(input_, "\n", 1) != 1) throw std::runtime_error("write");
  }
  ~Process() {
    kill_now();
    if (input_ >= 0) close(input_);
  }
  void kill_now() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void leave() {
    close(std::exchange(input_, -1));
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
};

TEST(ZmqFaults, AKilledProcessIsNamed) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Process process(host);
  ASSERT_EQ(rank.recv(1, 1, 6).status, BP_OK);
  // A receive that waits, a large send amid its rendezvous, and later operations.
  const Bytes large = pattern(4 << 20, 1);
  Bytes target(6);
  bp_work* const receiving = rank.start(Rank::make_recv(1, 1, target));
  bp_work* const sending = rank.start(Rank::make_send(1, 1, large));
  EXPECT_EQ(rank.finish(receiving, 0), BP_AGAIN);
  const auto start = Clock::now();
  process.kill_now();
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(rank.finish(receiving, 20 * kSecond, &err), BP_PEER_LOST);
  EXPECT_EQ(err.peer_rank, 1);
  EXPECT_NE(std::string(err.text).find("rank 1 is lost"), std::string::npos) << err.text;
  EXPECT_EQ(rank.finish(sending), BP_PEER_LOST);
  EXPECT_EQ(rank.recv(1, 2, 6).status, BP_PEER_LOST);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15));  // no operation waited for its timeout
}

TEST(ZmqFaults, APeerThatDoesNotAnswerIsNamed) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Process process(host);
  process.kill_now();
  const Received received = rank.recv(1, 7, 6);
  EXPECT_EQ(received.status, BP_PEER_LOST);
  EXPECT_EQ(received.peer_rank, 1);
}

// For example while connections from outside the job hold all.
TEST(ZmqFaults, AConnectionForWhichThereWasNoDescriptorIsMadeLater) {
  MemoryHost host;
  Rank zero(host, 0, 2);
  Rank one(host, 1, 2);
  const Bytes sent = pattern(100, 1);
  bp_work* work = nullptr;
  {
    const int lowest_free = ::dup(STDIN_FILENO);
    ASSERT_GE(lowest_free, 0);
    ::close(lowest_free);
    const DescriptorLimit none_left(static_cast<rlim_t>(lowest_free));
    work = zero.start(Rank::make_send(1, 7, sent));
    EXPECT_EQ(one.recv(0, 7, sent.size(), BP_OP_SYNC, kSecond / 2).status, BP_TIMEOUT);
  }
  const Received received = one.recv(0, 7, sent.size());
  EXPECT_EQ(received.status, BP_OK) << received.text;
  EXPECT_EQ(received.bytes, sent);
  EXPECT_EQ(zero.finish(work), BP_OK);
}

TEST(ZmqFaults, ADepartureFailsOnlyOperationsWithThatRank) {
  MemoryHost host;
  auto departed = std::make_unique<std::promise<void>>();
  std::future<void> departure = departed->get_future();
  on_ranks(3, [&host, &departed, &departure](int32_t number) {
    auto rank = std::make_unique<Rank>(host, number, 3);
    if (number == 2) {
      EXPECT_EQ(rank->recv(0, 3, 0).status, BP_OK);
      EXPECT_EQ(rank->send(0, 1, pattern(100, 1)), BP_OK);
      rank.reset();
      departed->set_value();
    } else if (number == 0) {
      EXPECT_EQ(rank->send(2, 3, {}), BP_OK);
      departure.wait();
      const Received received = rank->recv(2, 2, 10);
      EXPECT_EQ(received.status, BP_PEER_LOST);
      EXPECT_EQ(received.peer_rank, 2);
      EXPECT_NE(received.text.find("rank 2 has left the group"), std::string::npos) << received.text;
      EXPECT_EQ(rank->send(2, 2, pattern(10, 1)), BP_PEER_LOST);
      EXPECT_EQ(rank->recv(2, 1, 100).bytes, pattern(100, 1));  // it had sent this before
      EXPECT_EQ(rank->send(1, 2, pattern(10, 1)), BP_OK);
    } else {
      EXPECT_EQ(rank->recv(0, 2, 10).bytes, pattern(10, 1));
    }
  });
}

TEST(ZmqFaults, AProcessThatLeavesHasDeliveredItsMessages) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Process process(host);
  process.leave();
  EXPECT_EQ(rank.recv(1, 1, 6).status, BP_OK);
  EXPECT_EQ(rank.recv(1, 1, 6).status, BP_PEER_LOST);
  EXPECT_EQ(rank.recv(BP_ANY_SOURCE, 1, 6).status, BP_PEER_LOST);
}

TEST(ZmqFaults, AbortEndsAllOperations) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Rank other(host, 1, 2);
  const Bytes large = pattern(4 << 20, 1);
  Bytes target(10);
  bp_work* const receiving = rank.start(Rank::make_recv(1, 2, target));
  bp_work* const sending = rank.start(Rank::make_send(1, 2, large));
  std::promise<void> entered;
  auto blocked = std::async(std::launch::async, [&rank, &entered] {
    entered.set_value();
    return rank.recv(1, 1, 10, BP_OP_SYNC, BP_NO_TIMEOUT);
  });
  auto from_any =
      std::async(std::launch::async, [&rank] { return rank.recv(BP_ANY_SOURCE, 5, 10, BP_OP_SYNC, BP_NO_TIMEOUT); });
  entered.get_future().wait();
  rank.abort(BP_PEER_LOST, "rank 1 ran out of power", 1);
  const Received ended = blocked.get();
  EXPECT_EQ(ended.status, BP_PEER_LOST);
  EXPECT_EQ(ended.peer_rank, 1);
  EXPECT_NE(ended.text.find("ran out of power"), std::string::npos) << ended.text;
  EXPECT_EQ(from_any.get().status, BP_PEER_LOST);
  EXPECT_EQ(rank.finish(receiving), BP_PEER_LOST);
  EXPECT_EQ(rank.finish(sending), BP_PEER_LOST);
  EXPECT_EQ(rank.send(1, 1, pattern(1, 1)), BP_PEER_LOST);
  EXPECT_NE(rank.error().find("ran out of power"), std::string::npos);
  rank.abort(BP_INTERNAL, "a second time");
  EXPECT_EQ(rank.send(1, 1, pattern(1, 1)), BP_PEER_LOST);
}

TEST(ZmqFaults, PeersLearnWhyARankAborted) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Rank other(host, 1, 2);
  Bytes target(10);
  bp_work* const receiving = rank.start(Rank::make_recv(1, 1, target));
  EXPECT_EQ(rank.send(1, 2, pattern(5, 1)), BP_OK);
  EXPECT_EQ(other.recv(0, 2, 5).status, BP_OK);
  other.abort(BP_TIMEOUT, "nothing came");
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(rank.finish(receiving, 20 * kSecond, &err), BP_TIMEOUT);
  EXPECT_EQ(std::string(err.text), "rank 1 has left the group: nothing came");
}

// A rank aborts while libzmq has pieces of its buffer and the receiver has stopped: the buffer is returned.
TEST(ZmqFaults, AbortInTheMiddleOfALargeMessage) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Process process(host);
  ASSERT_EQ(rank.recv(1, 1, 6).status, BP_OK);
  auto large = std::make_unique<Bytes>(pattern(64 << 20, 1));
  bp_work* const sending = rank.start(Rank::make_send(1, 1, *large));
  rank.abort(BP_CANCELLED, "enough");
  EXPECT_EQ(rank.finish(sending, kSecond), BP_CANCELLED);
  large.reset();
}

// A port that accepts connections and never answers, published as that of rank 1.
class SilentPeer {
 public:
  explicit SilentPeer(MemoryHost& host) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    const std::string key = word(stored(host, "zmq/0"), 2);  // in secure groups any key is accepted
    const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + " - " + key;
    const bp_host& table = *host.table();
    table.store_set(table.ctx, "zmq/1", endpoint.data(), endpoint.size(), nullptr);
  }
  ~SilentPeer() { ::close(fd_); }
  SilentPeer(const SilentPeer&) = delete;
  SilentPeer& operator=(const SilentPeer&) = delete;

 private:
  const int fd_;
};

// libzmq has the whole message, and a thread waits for the buffer: abort must wake that thread.
TEST(ZmqFaults, AbortEndsTheWaitForABorrowedBuffer) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  const SilentPeer peer(host);
  auto blocked = std::async(std::launch::async,
                            [&rank] { return rank.send(1, 1, pattern(300'000, 1), BP_OP_SYNC, 30 * kSecond); });
  EXPECT_EQ(blocked.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);  // libzmq has it
  rank.abort(BP_CANCELLED, "enough");
  EXPECT_EQ(blocked.wait_for(std::chrono::seconds(10)), std::future_status::ready) << "it waits for its own deadline";
  EXPECT_EQ(blocked.get(), BP_CANCELLED);
}

// Messages that were never sent do not use up the window.
TEST(ZmqFaults, CancelledSendsReturnTheirWindow) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(rank.send(1, 1, pattern(1 << 20, 1), BP_OP_SYNC, kSecond / 1000), BP_TIMEOUT);
    EXPECT_EQ(rank.send(1, 1, pattern(60'000, 1), BP_OP_SYNC, kSecond / 1000), BP_TIMEOUT);
  }
  Rank other(host, 1, 2);
  EXPECT_EQ(rank.send(1, 1, pattern(1 << 20, 2)), BP_OK);  // before its receive
  EXPECT_EQ(other.recv(0, 1, 1 << 20).bytes, pattern(1 << 20, 2));
}

TEST(ZmqFaults, WaitsTimeOut) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Rank other(host, 1, 2);
  const auto start = Clock::now();
  const Received late = rank.recv(1, 1, 10, BP_OP_SYNC, kSecond / 10);
  EXPECT_EQ(late.status, BP_TIMEOUT);
  EXPECT_NE(late.text.find("rank 1"), std::string::npos) << late.text;
  EXPECT_EQ(rank.send(1, 1, pattern(4 << 20, 1), BP_OP_SYNC, kSecond / 10), BP_TIMEOUT);
  EXPECT_EQ(rank.recv(1, 1, 10, BP_OP_SYNC, 0).status, BP_TIMEOUT);
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(200));
  // The group is still usable.
  EXPECT_EQ(other.send(0, 1, pattern(10, 2)), BP_OK);
  EXPECT_EQ(rank.recv(1, 1, 10).bytes, pattern(10, 2));
  EXPECT_EQ(rank.send(1, 1, pattern(10, 3)), BP_OK);
  EXPECT_EQ(other.recv(0, 1, 4 << 20).size, 10u);
}

TEST(ZmqFaults, CancelledOperationsEndAndOthersContinue) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  Rank other(host, 1, 2);
  Bytes target(10);
  EXPECT_EQ(rank.recv(1, 1, 10, 0, 0).status, BP_CANCELLED);            // a posted receive
  EXPECT_EQ(rank.send(1, 1, pattern(4 << 20, 1), 0, 0), BP_CANCELLED);  // a send without a receive
  EXPECT_EQ(rank.send(0, 1, pattern(4 << 20, 1), 0, 0), BP_CANCELLED);  // the same to itself
  EXPECT_EQ(rank.send(1, 1, pattern(2 << 20, 2), 0, kSecond / 100), BP_CANCELLED);
  bp_work* const sending = rank.start(Rank::make_send(1, 1, target));
  EXPECT_EQ(other.recv(0, 1, 4 << 20).size, 10u);
  EXPECT_EQ(rank.finish(sending), BP_OK);
}

// Small enough to be sent at once, too large to be copied.
TEST(ZmqFaults, ASendToARankThatHasNotJoinedCanBeCancelled) {
  MemoryHost host;
  Rank rank(host, 0, 2);
  EXPECT_EQ(rank.send(1, 1, pattern(100000, 1), 0, 0), BP_CANCELLED);
  EXPECT_EQ(rank.send(1, 1, pattern(100000, 2), BP_OP_SYNC, kSecond / 100), BP_TIMEOUT);
  Rank other(host, 1, 2);
  EXPECT_EQ(rank.send(1, 1, pattern(100000, 3)), BP_OK);
  EXPECT_EQ(other.recv(0, 1, 100000).bytes, pattern(100000, 3));
}

}  // namespace
}  // namespace backplane::test
