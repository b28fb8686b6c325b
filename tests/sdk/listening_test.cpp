// SPDX-License-Identifier: Apache-2.0
#include "backplane/sdk/listening.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "sdk/host.hpp"

namespace backplane::sdk {
namespace {

// The address that is chosen by a rank that reaches the store from `store`.
std::string chosen(const char* store, const std::string& named = "") {
  MemoryHost host;
  if (store != nullptr) host.reach_store_from(store);
  const bp_init init = init_of(host, 0, 2, 0);
  return listening_address(Context(init), named);
}

TEST(ListeningTest, TheAddressIsThatOfTheConnectionToTheStore) {
  EXPECT_EQ(chosen("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(chosen("fd77::1"), "fd77::1");
  EXPECT_EQ(chosen("::ffff:10.0.0.1"), "10.0.0.1");
}

TEST(ListeningTest, ItIsLoopbackIfNoOtherHostReachesTheStoreFromThere) {
  for (const char* store : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", ""}) {
    EXPECT_EQ(chosen(store), "127.0.0.1") << store;
  }
  EXPECT_EQ(chosen(nullptr), "127.0.0.1");  // an older core
}

TEST(ListeningTest, AnOptionComesFirst) { EXPECT_EQ(chosen("10.0.0.1", "10.0.0.2"), "10.0.0.2"); }

TEST(ListeningTest, UrlsHaveAnAddress) {
  EXPECT_EQ(address_in("tcp://10.0.0.1:1234"), "10.0.0.1");
  EXPECT_EQ(address_in("uv://[fd00::1]:1234"), "fd00::1");
  for (const char* none : {"", "tcp", "tcp://", "tcp://10.0.0.1", "10.0.0.1:1234"})
    EXPECT_EQ(address_in(none), "") << none;
}

TEST(ListeningTest, LoopbackBetweenHostsIsRefused) {
  const auto refusal = [](const Listener& mine, const Listener& other) -> std::string {
    try {
      refuse_loopback_between_hosts(mine, other, 0);
      return "";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status(), BP_INVALID);
      EXPECT_EQ(failure.peer_rank(), 0);
      return failure.what();
    }
  };
  const Listener loopback = {"rank 0", "a", "127.0.0.1"};
  const Listener network = {"rank 1", "b", "10.0.0.2"};
  EXPECT_TRUE(refusal(network, loopback).starts_with("rank 0 listens on 127.0.0.1 and rank 1 on 10.0.0.2, but they"));
  EXPECT_TRUE(refusal(loopback, network).starts_with("rank 1 listens on 10.0.0.2 and rank 0 on 127.0.0.1, but they"));
  EXPECT_EQ(refusal(network, {"rank 0", "a", "10.0.0.1"}), "");
  EXPECT_EQ(refusal(network, {"rank 0", "b", "127.0.0.1"}), "");
  EXPECT_EQ(refusal(network, {"rank 0", "", "127.0.0.1"}), "");  // unknown
}

}  // namespace
}  // namespace backplane::sdk
