// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "plugins/zmq/support.hpp"

namespace backplane::test {
namespace {

std::string refusal(const OptionMap& options) {
  MemoryHost host;
  return start_failure(host, 0, 1, options);
}

TEST(ZmqOptions, EveryOptionIsDescribed) {
  const bp_backend& backend = zmq_backend();
  ASSERT_GT(backend.option_count, 0U);
  for (uint32_t i = 0; i < backend.option_count; ++i) {
    EXPECT_GT(std::string(backend.options[i]->help).size(), 10u) << backend.options[i]->key;
    const bool number = backend.options[i]->type != BP_OPTION_STRING && backend.options[i]->type != BP_OPTION_ENUM;
    EXPECT_TRUE(!number || backend.options[i]->max > 0) << backend.options[i]->key;
  }
}

TEST(ZmqOptions, AnUnknownInterfaceErrorListsTheKnownOnes) {
  const std::string text = refusal({{"iface", "nosuch0"}});
  EXPECT_NE(text.find("there is no network interface 'nosuch0' with an address"), std::string::npos) << text;
  const size_t list = text.find("there are: ");
  ASSERT_NE(list, std::string::npos) << text;
  EXPECT_NE(text.find("lo", list), std::string::npos) << text;
}

// The name and IPv4 address of an interface; of loopback, the default, only if there is no other.
std::pair<std::string, std::string> any_interface() {
  std::pair<std::string, std::string> found = {"lo", "127.0.0.1"};
  ifaddrs* list = nullptr;
  EXPECT_EQ(getifaddrs(&list), 0);
  for (const ifaddrs* each = list; each != nullptr && found.first == "lo"; each = each->ifa_next) {
    const bool is_up = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (!is_up || each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text, sizeof text);
    found = {each->ifa_name, text};
  }
  freeifaddrs(list);
  return found;
}

TEST(ZmqOptions, AnInterfaceGivesItsAddress) {
  const auto [name, address] = any_interface();
  MemoryHost host;
  Rank zero(host, 0, 2, {{"iface", name}});
  Rank one(host, 1, 2, {{"iface", name}});
  for (const char* key : {"zmq/0", "zmq/1"}) {
    EXPECT_TRUE(stored(host, key).starts_with("tcp://" + address + ":")) << name << ": " << stored(host, key);
  }
  EXPECT_EQ(zero.send(1, 1, pattern(10, 1)), BP_OK) << zero.error();
  EXPECT_EQ(one.recv(0, 1, 10).bytes, pattern(10, 1));
}

TEST(ZmqOptions, AWrongAddressIsRefused) {
  EXPECT_NE(refusal({{"address", "example.invalid"}}).find("is not an IPv4 or IPv6 address"), std::string::npos);
  EXPECT_NE(refusal({{"address", "192.0.2.1"}}).find("cannot listen on 192.0.2.1"), std::string::npos);
}

// On another host a loopback address reaches another machine.
TEST(ZmqOptions, LoopbackBetweenHostsIsRefused) {
  for (const std::string address : {"127.0.0.1", "10.0.0.1"}) {
    MemoryHost host;
    const std::string entry = "12345 " + address + " another-boot/net:[1]";
    host.table()->store_set(host.table()->ctx, "zmq/token", entry.data(), entry.size(), nullptr);
    const std::string text = start_failure(host, 1, 2);
    EXPECT_NE(text.find("rank 0 listens on " + address + " and rank 1 on 127.0.0.1, but they are on different hosts"),
              std::string::npos)
        << text;
  }
}

// Replaces rank 1's endpoints in the store; rank 0 must then reach rank 1.
void expect_a_message(MemoryHost& host, Rank& zero, Rank& one, const std::string& endpoints) {
  const std::string entry = endpoints + " " + word(stored(host, "zmq/1"), 2);
  host.table()->store_set(host.table()->ctx, "zmq/1", entry.data(), entry.size(), nullptr);
  EXPECT_EQ(zero.send(1, 1, pattern(10, 1)), BP_OK) << zero.error();
  EXPECT_EQ(one.recv(0, 1, 10).bytes, pattern(10, 1));
}

const OptionMap kLocal = {{"transport", "ipc"}};

TEST(ZmqOptions, RanksOfOneHostUseLocalSockets) {
  MemoryHost host;
  Rank zero(host, 0, 2, kLocal);
  Rank one(host, 1, 2, kLocal);
  expect_a_message(host, zero, one, "tcp://127.0.0.1:1 " + word(stored(host, "zmq/1"), 1));
}

TEST(ZmqOptions, RanksOfOtherHostsUseTcp) {
  MemoryHost host;
  Rank zero(host, 0, 2, kLocal);
  Rank one(host, 1, 2, kLocal);
  expect_a_message(host, zero, one, word(stored(host, "zmq/1"), 0) + " ipc://@backplane/another-boot/net:[1]/1");
}

TEST(ZmqOptions, RanksWithoutTheOptionUseTcp) {
  MemoryHost host;
  Rank zero(host, 0, 2);
  Rank one(host, 1, 2);
  EXPECT_EQ(word(stored(host, "zmq/1"), 1), "-");
  Rank local(host, 2, 3, kLocal);
  expect_a_message(host, zero, one, word(stored(host, "zmq/1"), 0) + " " + word(stored(host, "zmq/2"), 1));
}

TEST(ZmqOptions, PiecesMustFitTheLimit) {
  const std::string text = refusal({{"chunk_size", "1048576"}, {"max_message_size", "65536"}});
  EXPECT_NE(text.find("below max_message_size (65536)"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane::test
