// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/sockets.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "sdk/host.hpp"

namespace backplane::sdk {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;  // nanoseconds; reached only on failure

struct Ended {
  int32_t status = BP_OK;
  std::string text;
  std::vector<Descriptor> sockets;
};

Ended connect(const MemoryHost& host, int32_t rank, int32_t world_size, int64_t timeout_ns = kLongNs,
              const std::string& address = "127.0.0.1") {
  Ended ended;
  const bp_init init = init_of(host, rank, world_size, timeout_ns);
  try {
    ended.sockets = connect_all(Context(init), address);
  } catch (const Failure& failure) {
    ended.status = failure.status();
    ended.text = failure.what();
  }
  return ended;
}

char read_byte(int fd) {
  pollfd item = {fd, POLLIN, 0};
  char byte = '?';
  EXPECT_EQ(::poll(&item, 1, 60'000), 1);
  EXPECT_EQ(::recv(fd, &byte, 1, 0), 1);
  return byte;
}

TEST(SocketsTest, EachRankIsConnectedToEachOther) {
  constexpr int32_t kRanks = 4;
  MemoryHost host;
  std::vector<Ended> ended(kRanks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&host, &ended, rank] { ended[static_cast<size_t>(rank)] = connect(host, rank, kRanks); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t from = 0; from < kRanks; ++from) {
    ASSERT_EQ(ended[from].status, BP_OK) << ended[from].text;
    EXPECT_FALSE(ended[from].sockets[from]);
    for (size_t to = 0; to < kRanks; ++to) {
      if (to == from) continue;
      const int fd = ended[from].sockets[to].get();
      EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
      EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
      const char byte = static_cast<char>('a' + from);
      ASSERT_EQ(::send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    }
  }
  for (size_t at = 0; at < kRanks; ++at) {
    for (size_t from = 0; from < kRanks; ++from) {
      if (at == from) continue;
      EXPECT_EQ(read_byte(ended[at].sockets[from].get()), static_cast<char>('a' + from));
    }
  }
}

TEST(SocketsTest, InvalidConnectionsAreClosed) {
  MemoryHost host;
  Ended first, second;
  std::jthread zero([&host, &first] { first = connect(host, 0, 2); });
  detail::Endpoint endpoint{};
  const std::string value = host.value("socket.0");
  ASSERT_GE(value.size(), sizeof endpoint);
  std::memcpy(&endpoint, value.data(), sizeof endpoint);
  std::vector<Descriptor> connections;
  for (int i = 0; i < 40; ++i) {  // silent clients, and some that send invalid bytes
    Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&endpoint.address), endpoint.size), 0);
    if (i % 2 == 0) ::send(fd.get(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 36, MSG_NOSIGNAL);
    connections.push_back(std::move(fd));
  }
  std::thread one([&host, &second] { second = connect(host, 1, 2); });
  zero.join();
  one.join();
  ASSERT_EQ(first.status, BP_OK) << first.text;
  ASSERT_EQ(second.status, BP_OK) << second.text;
  ASSERT_EQ(::send(second.sockets[0].get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(read_byte(first.sockets[1].get()), 'x');
}

TEST(SocketsTest, AMissingRankIsNamed) {
  MemoryHost host;
  const Ended ended = connect(host, 0, 3, 100'000'000);
  EXPECT_EQ(ended.status, BP_TIMEOUT);
  EXPECT_EQ(ended.text, "rank 1, 2 did not connect to rank 0 in time");
}

TEST(SocketsTest, AbortEndsTheWait) {
  MemoryHost host;
  Ended low, high;
  std::thread zero([&host, &low] { low = connect(host, 0, 3); });
  std::thread two([&host, &high] { high = connect(host, 2, 3); });
  const bool are_waiting = !host.value("socket.0").empty() && !host.value("socket.2").empty();
  host.abort();
  zero.join();
  two.join();
  EXPECT_TRUE(are_waiting);
  EXPECT_EQ(low.status, BP_CANCELLED) << low.text;
  EXPECT_EQ(high.status, BP_CANCELLED) << high.text;
}

TEST(SocketsTest, AnInvalidAddressHasItsOwnError) {
  MemoryHost host;
  const Ended unread = connect(host, 0, 2, kLongNs, "not-an-address");
  EXPECT_EQ(unread.status, BP_INVALID);
  EXPECT_EQ(unread.text, "the address is not a numeric one, such as 127.0.0.1: 'not-an-address'");
  const Ended foreign = connect(host, 0, 2, kLongNs, "192.0.2.1");  // reserved (RFC 5737), so not of this host
  EXPECT_EQ(foreign.status, BP_INVALID);
  EXPECT_TRUE(foreign.text.starts_with("cannot listen at the address 192.0.2.1: ")) << foreign.text;
}

TEST(SocketsTest, LoopbackBetweenHostsIsRefused) {
  MemoryHost host;
  Ended low;
  std::thread zero([&host, &low] { low = connect(host, 0, 2, kLongNs, ""); });
  const std::string value = host.value("socket.0").substr(0, sizeof(detail::Endpoint)) + "another-boot/net:[1]";
  host.table()->store_set(host.table()->ctx, "socket.0", value.data(), value.size(), nullptr);
  const Ended high = connect(host, 1, 2, kLongNs, "");
  host.abort();
  zero.join();
  EXPECT_EQ(high.status, BP_INVALID);
  EXPECT_TRUE(
      high.text.starts_with("rank 0 listens on 127.0.0.1 and rank 1 on 127.0.0.1, but they are on different "
                            "hosts, "))
      << high.text;
}

TEST(SocketsTest, WrittenDataArrivesIfTheWriterHasUnreadData) {
  MemoryHost host;
  Ended low, high;
  std::thread zero([&host, &low] { low = connect(host, 0, 2); });
  high = connect(host, 1, 2);
  zero.join();
  const std::string data(100'000, 'x');
  ASSERT_EQ(::send(high.sockets[0].get(), "unread", 6, MSG_NOSIGNAL), 6);
  const ssize_t sent = ::send(low.sockets[1].get(), data.data(), data.size(), MSG_NOSIGNAL);
  ASSERT_GT(sent, 0);
  std::thread closing([&low] { close_gently(low.sockets, kLongNs); });
  std::string got(data.size(), '\0');
  ssize_t count = 0;
  for (;;) {
    pollfd item = {high.sockets[0].get(), POLLIN, 0};
    ASSERT_EQ(poll(&item, 1, 60'000), 1);
    const ssize_t now = ::recv(high.sockets[0].get(), got.data(), got.size(), 0);
    ASSERT_GE(now, 0);
    if (now == 0) break;
    count += now;
  }
  EXPECT_EQ(count, sent);
  high.sockets[0].reset();
  closing.join();
}

}  // namespace
}  // namespace backplane::sdk
