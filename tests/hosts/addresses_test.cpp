// SPDX-License-Identifier: Apache-2.0
//
// A job on two hosts that names no address but that of its store. All hosts have a docker0 with the same address.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "hosts/network.hpp"

namespace backplane::test {
namespace {

struct Way {
  const char* name;
  const char* backend;  // of the group
  std::vector<const char*> commands;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class AddressesTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string obstacle = Network::obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
    network_ = std::make_unique<Network>(2);
  }

  // The replies of both ranks to the commands, up to the first that fails. `own`: variables of each rank.
  std::vector<std::string> replies(const Way& way, const std::string& master,
                                   const std::vector<Variables>& own = {{}, {}}) {
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      Variables variables = own[static_cast<size_t>(rank)];
      variables.insert({{"BACKPLANE_BACKEND", way.backend},
                        {"MASTER_ADDR", master},
                        {"MASTER_PORT", "29500"},
                        {"WORLD_SIZE", "2"},
                        {"RANK", std::to_string(rank)},
                        {"BACKPLANE_JOB_ID", ""},
                        {"BACKPLANE_STORE_HOSTED", "0"}});
      ranks.push_back(std::make_unique<Process>(variables, network_->on(rank)));
    }
    const std::vector<std::string> good(2, "ok");
    std::vector<std::string> replies = good;
    for (const char* command : way.commands) {
      if (replies != good) break;
      for (const auto& rank : ranks) rank->send(command);
      for (size_t rank = 0; rank < 2; ++rank) replies[rank] = ranks[rank]->receive();
    }
    for (const auto& rank : ranks) rank->send("quit");
    for (const auto& rank : ranks) EXPECT_EQ(rank->receive(), "ok");
    return replies;
  }

  std::unique_ptr<Network> network_;
};

class UnnamedAddressesTest : public AddressesTest, public testing::WithParamInterface<Way> {};

TEST_P(UnnamedAddressesTest, RanksListenWhereTheyReachTheStore) {
  EXPECT_EQ(replies(GetParam(), Network::address(0)), std::vector<std::string>(2, "ok"));
}

TEST_P(UnnamedAddressesTest, RanksListenWhereTheyReachTheStoreOverIpv6) {
  EXPECT_EQ(replies(GetParam(), Network::ipv6_address(0)), std::vector<std::string>(2, "ok"));
}

const auto name_of = [](const auto& tested) { return std::string(tested.param.name); };
INSTANTIATE_TEST_SUITE_P(Zmq, UnnamedAddressesTest,
                         testing::Values(Way{"group", "zmq", {"init", "traffic 20"}}, Way{"rpc", "zmq", {"rpc zmq"}},
                                         Way{"process_group", "zmq", {"rpc process_group"}}),
                         name_of);
#ifdef BACKPLANE_TEST_gloo
INSTANTIATE_TEST_SUITE_P(Gloo, UnnamedAddressesTest, testing::Values(Way{"group", "gloo", {"init", "traffic 20"}}),
                         name_of);
#endif
#ifdef BACKPLANE_TEST_tensorpipe
INSTANTIATE_TEST_SUITE_P(TensorPipe, UnnamedAddressesTest, testing::Values(Way{"rpc", "zmq", {"rpc tensorpipe"}}),
                         name_of);
#endif

TEST_F(AddressesTest, AnOptionComesBeforeTheStore) {
  const Variables loopback = {{"BACKPLANE_BACKEND", "zmq?address=127.0.0.1"}};
  for (const std::string& reply : replies({"", "zmq", {"init"}}, Network::address(0), {{}, loopback})) {
    EXPECT_NE(reply.find("rank 0 listens on 10.77.0.1 and rank 1 on 127.0.0.1, but they are on different hosts"),
              std::string::npos)
        << reply;
  }
}

}  // namespace
}  // namespace backplane::test
