// SPDX-License-Identifier: Apache-2.0
//
// A job of `backplane run` on two hosts over MPICH. The ranks have only the interfaces, the shared memory and the
// processes of their host.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "hosts/network.hpp"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

constexpr int kMpiHosts = 2;
constexpr int kRanksPerHost = 2;

// Enters a host. The kernel may report an interface as down for a second after its cable is connected.
constexpr const char* kEnter =
    "mount -t sysfs sysfs /sys && mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && "
    "until ip -o link show eth0 | grep -q 'state UP'; do sleep 0.05; done; exec \"$@\"";

// The launcher of a host.
std::unique_ptr<Command> mpi_node(const Network& network, int host) {
  std::vector<std::string> words = network.on(host);
  for (const char* word : {"unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c", kEnter, "sh",
                           BACKPLANE_TEST_COMMAND, "run", "--backend", "mpi", "--master-port", "29500"}) {
    words.emplace_back(word);
  }
  for (const std::string& word :
       {std::string("-n"), std::to_string(kRanksPerHost), std::string("--nnodes"), std::to_string(kMpiHosts),
        std::string("--node-rank"), std::to_string(host), std::string("--master-addr"), Network::address(0),
        std::string(BACKPLANE_TEST_HELLO)}) {
    words.push_back(word);
  }
  // All hosts have a docker0 with one address, which UCX would choose.
  Setting setting = {{{"BACKPLANE_MPI_LIBRARY", "libmpich.so.12"}, {"UCX_NET_DEVICES", "eth0"}}, {}, "/usr/bin/env"};
  return std::make_unique<Command>(words, setting);
}

TEST(MpiHosts, MpichStartsInTheRanksOfTwoLaunchers) {
  if (std::string(BACKPLANE_TEST_HYDRA).empty()) GTEST_SKIP() << "MPICH is not installed";
  if (std::string(BACKPLANE_TEST_HELLO).empty()) GTEST_SKIP() << "the examples are not built";
  const std::string obstacle = Network::obstacle();
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
  const Network network(kMpiHosts);
  const auto second = mpi_node(network, 1);
  const auto first = mpi_node(network, 0);
  const Outcome outcomes[] = {first->wait(), second->wait()};
  for (int rank = 0; rank < kMpiHosts * kRanksPerHost; ++rank) {
    const Outcome& outcome = outcomes[rank / kRanksPerHost];
    const std::string number = std::to_string(rank);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(count_lines(outcome.out, "[" + number + "] rank " + number + " of 4 over mpi: the ranks add up to 6"), 1U)
        << outcome.out << outcome.err;
  }
}

}  // namespace
}  // namespace backplane::test
