// SPDX-License-Identifier: Apache-2.0
//
// Start and end of groups of the plugin gloo: names, addresses, missing ranks, leaks.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "gloo_test.hpp"
#include "support/must_end.hpp"

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

size_t entries(const char* directory) {
  const std::filesystem::directory_iterator all(directory);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
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

// Loopback is also the default here; the logged reason tells them apart.
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

// The addresses that a rank has published, one per peer.
std::vector<sockaddr_storage> addresses_of(MemoryHost& host, int32_t rank, int32_t world_size) {
  std::vector<char> bytes(1 << 20);
  uint64_t size = 0;
  const std::string key = "gloo/" + std::to_string(rank);
  EXPECT_EQ(host.table()->store_get(host.table()->ctx, key.c_str(), bytes.data(), bytes.size(), &size,
                                    INT64_C(20'000'000'000), nullptr),
            BP_OK);
  std::vector<sockaddr_storage> addresses(static_cast<size_t>(world_size) - 1);
  const size_t stride = size / addresses.size();  // gloo's addresses begin with the socket's
  for (size_t i = 0; i < addresses.size(); ++i) {
    std::memcpy(&addresses[i], bytes.data() + i * stride, sizeof(sockaddr_storage));
  }
  return addresses;
}

// Connects and resets the connection at once.
void connect_and_reset(const sockaddr_storage& address) {
  const int socket = ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const linger now = {1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(sockaddr_in)), 0);
  ::close(socket);
}

TEST(Connect, TimesOutThoughOthersConnectAndReset) {
  constexpr int32_t kWorld = 65;
  MemoryHost host;
  host.table()->store_set(host.table()->ctx, "gloo/one_host", "yes", 3,
                          nullptr);  // the result of the host comparison, in place of the missing ranks
  std::thread resetter([&host] {
    for (const sockaddr_storage& address : addresses_of(host, 0, kWorld)) connect_and_reset(address);
  });
  const std::string text = init_error_in_time(host, kWorld, 500'000'000);
  EXPECT_NE(text.find("rank 1 has not joined the group"), std::string::npos) << text;
  resetter.join();
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
  cycle();  // opens what the process opens once
  const size_t descriptors = entries("/proc/self/fd");
  const size_t threads = entries("/proc/self/task");
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

}  // namespace
}  // namespace backplane::test
