// SPDX-License-Identifier: Apache-2.0
//
// Start and end of groups of the plugin gloo: names, addresses, missing ranks, leaks.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "backplane/base/descriptor.hpp"
#include "backplane/base/pending_connections.hpp"
#include "fake_peer.hpp"
#include "gloo_test.hpp"
#include "support/descriptor_limit.hpp"
#include "support/eventually.hpp"
#include "support/must_end.hpp"
#include "support/resources.hpp"

namespace backplane::test {
namespace {

// The error text of init; empty if it succeeds.
std::string init_error(MemoryHost& host, int32_t world_size, const std::map<std::string, std::string>& options,
                       int64_t timeout_ns = INT64_C(20'000'000'000)) {
  try {
    const Agent agent(gloo(), host.table(), 0, world_size, options, timeout_ns);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}
std::string init_error(int32_t world_size, const std::map<std::string, std::string>& options) {
  MemoryHost host;
  return init_error(host, world_size, options);
}

TEST(Connect, ProvidesTheBackendTcp) {
  MemoryHost host;
  const bp_backend& tcp = open_backend(BACKPLANE_GLOO_PLUGIN, "tcp");
  on_ranks(2, [&host, &tcp](int32_t rank) {
    Agent agent(tcp, host.table(), rank, 2);
    expect_done(agent, make_op(BP_BARRIER));
  });
}

TEST(Connect, LogsTheSelectedAddressAndTheReason) {
  MemoryHost host;
  on_ranks(2, [&host](int32_t rank) { const Agent agent(gloo(), host.table(), rank, 2); });
  EXPECT_NE(host.logged().find("rank 1 listens on 127.0.0.1 (lo): all 2 ranks are on this host"), std::string::npos)
      << host.logged();
}

// Loopback is also the default here. The logged reason distinguishes the two.
TEST(Connect, AcceptsAnInterfaceOrAnAddress) {
  for (const auto& [option, value] : {std::pair("iface", "lo"), std::pair("address", "127.0.0.1")}) {
    MemoryHost host;
    on_ranks(2, [&host, &options = option, &to = value](int32_t rank) {
      Agent agent(gloo(), host.table(), rank, 2, {{options, to}});
      expect_done(agent, make_op(BP_BARRIER));
    });
    const std::string words = std::string("listens on 127.0.0.1 (lo): the option ") + option + " selects it";
    EXPECT_NE(host.logged().find(words), std::string::npos) << host.logged();
  }
}

TEST(Connect, UnknownInterfaceListsTheAvailableOnes) {
  const std::string text = init_error(2, {{"iface", "warp0"}});
  EXPECT_NE(text.find("'warp0'"), std::string::npos) << text;
  EXPECT_NE(text.find("127.0.0.1 (lo)"), std::string::npos) << text;
}

TEST(Connect, RejectsAnAddressOfAnotherHost) {
  const std::string text = init_error(2, {{"address", "192.0.2.1"}});
  EXPECT_NE(text.find("192.0.2.1, which is not an address of this host"), std::string::npos) << text;
  EXPECT_NE(init_error(2, {{"address", "127.0.0.1"}, {"iface", "lo"}}).find("exclude"), std::string::npos);
}

// The error text of init without the other ranks, which must end soon after its timeout.
std::string init_error_in_time(MemoryHost& host, int32_t world_size, int64_t timeout_ns) {
  std::string text;
  const auto start = [&] { text = init_error(host, world_size, {}, timeout_ns); };
  must_end("the start of a group without its ranks", start, std::chrono::seconds(20));
  return text;
}

TEST(Connect, TimesOutIfRanksAreMissing) {
  MemoryHost host;
  const std::string text = init_error_in_time(host, 2, 50'000'000);
  EXPECT_NE(text.find("rank 1 has not joined the group"), std::string::npos) << text;
}

// More ranks than read each other's addresses one by one.
constexpr int32_t kLargeWorld = 20;

TEST(Connect, JoinsLargeGroups) {
  MemoryHost host;
  on_ranks(kLargeWorld, [&host](int32_t rank) {
    Agent agent(gloo(), host.table(), rank, kLargeWorld);
    expect_done(agent, make_op(BP_BARRIER));
  });
}

TEST(Connect, NamesTheRankThatHasNotPublishedInALargeGroup) {
  MemoryHost host;
  skip_host_comparison(host);
  const std::string text = init_error_in_time(host, kLargeWorld, 50'000'000);
  EXPECT_NE(text.find("rank 1 has not joined the group"), std::string::npos) << text;
}

TEST(Connect, RefusesAnotherWorldSizeInALargeGroup) {
  MemoryHost host;
  skip_host_comparison(host);
  host.table()->store_set(host.table()->ctx, "gloo/published", "19", 2, nullptr);  // rank 0 is the last
  host.table()->store_set(host.table()->ctx, "gloo/1", "short", 5, nullptr);
  const std::string text = init_error_in_time(host, kLargeWorld, INT64_C(20'000'000'000));
  EXPECT_NE(text.find("rank 1 uses another world size"), std::string::npos) << text;
}

// Makes the end of the descriptor reset the connection.
void reset_on_close(const base::Descriptor& socket) {
  const linger now = {1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

// Waits until the other end closes the connection, up to kWaitLimit.
void await_close(const base::Descriptor& socket) {
  const timeval limit = {kWaitLimit.count(), 0};
  EXPECT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
  char byte = 0;
  ssize_t got = 1;
  while (got > 0) got = ::recv(socket.get(), &byte, 1, 0);
  EXPECT_FALSE(got < 0 && errno == EAGAIN) << "the connection was not closed in time";
}

TEST(Connect, TimesOutThoughOthersConnectAndReset) {
  constexpr int32_t kWorld = 65;
  MemoryHost host;
  skip_host_comparison(host);
  std::thread resetter([&host] {
    const sockaddr_in address = endpoint_of(host, 0).socket_address();
    for (int i = 0; i < kWorld; ++i) {
      const base::Descriptor socket = socket_with_limit();
      const auto* const to = reinterpret_cast<const sockaddr*>(&address);
      if (::connect(socket.get(), to, sizeof(address)) != 0) return;  // the start has ended
      reset_on_close(socket);
    }
  });
  const std::string text = init_error_in_time(host, kWorld, 500'000'000);
  EXPECT_NE(text.find("rank 1 has not joined the group"), std::string::npos) << text;
  resetter.join();
}

// Unknown clients connect before the peers do: some close or reset, some send something, some stay.
TEST(Connect, SucceedsThoughUnknownClientsConnect) {
  constexpr int32_t kWorld = 3;
  MemoryHost host;
  skip_host_comparison(host);
  std::thread first([&host] {
    Agent agent(gloo(), host.table(), 0, kWorld);
    expect_done(agent, make_op(BP_BARRIER));
  });
  std::vector<base::Descriptor> staying;
  const sockaddr_in address = endpoint_of(host, 0).socket_address();
  for (int i = 1; i < kWorld; ++i) {
    reset_on_close(connected_client(address));
    connected_client(address);
    staying.push_back(connected_client(address));
    const base::Descriptor talking = connected_client(address);
    EXPECT_GT(::send(talking.get(), "GET / HTTP/1.1\r\nHost: rank\r\n\r\n", 30, MSG_NOSIGNAL), 0);
    await_close(talking);
  }
  on_ranks(kWorld - 1, [&host](int32_t rank) {
    Agent agent(gloo(), host.table(), rank + 1, kWorld);
    expect_done(agent, make_op(BP_BARRIER));
  });
  first.join();
  EXPECT_NE(host.logged().find("closed a connection of a process that is no rank of this group"), std::string::npos)
      << host.logged();
  for (const base::Descriptor& each : staying) await_close(each);  // the listener's end is closed as well
}

TEST(Connect, ClosesTheOldestOfTooManyIdleClients) {
  constexpr size_t kClients = 80;
  const DescriptorLimit little(200);
  const size_t kept = base::max_pending_connections();
  ASSERT_LT(kept, kClients);
  MemoryHost host;
  skip_host_comparison(host);
  std::thread first([&host] {
    Agent agent(gloo(), host.table(), 0, 2);
    expect_done(agent, make_op(BP_BARRIER));
  });
  const sockaddr_in address = endpoint_of(host, 0).socket_address();
  std::vector<base::Descriptor> idle;
  for (size_t i = 0; i < kClients; ++i) idle.push_back(connected_client(address));
  for (size_t i = 0; i < kClients - kept; ++i) await_close(idle[i]);
  on_ranks(1, [&host](int32_t) {
    Agent agent(gloo(), host.table(), 1, 2);
    expect_done(agent, make_op(BP_BARRIER));
  });
  first.join();
}

TEST(Destroy, LeavesNoDescriptorOrThread) {
  const auto cycle = [] {
    on_group(3, [](Agent& agent, int32_t) {
      expect_done(agent, make_op(BP_BARRIER));
      bp_op op = make_op(BP_BARRIER);
      op.seq = 1;
      EXPECT_EQ(finished(agent, started(agent, op)), BP_OK);
    });
  };
  cycle();  // opens the descriptors that a process opens once
  const Resources before;
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_TRUE(before.are_restored());
}

}  // namespace
}  // namespace backplane::test
