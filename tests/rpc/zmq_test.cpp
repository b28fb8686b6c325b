// SPDX-License-Identifier: Apache-2.0
//
// The agent over libzmq; cuts_test.cpp tests broken connections.
#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>

#include "rpc/workers.hpp"
#include "support/secret.hpp"

namespace backplane::test {
namespace {

[[maybe_unused]] const bool zmq_registered = [] {
  rpc::register_function("reverse", [](std::vector<int> numbers) {
    std::reverse(numbers.begin(), numbers.end());
    return numbers;
  });
  return true;
}();

// The published public key of a worker; "-" if there is none.
std::string key_of(Store store, int rank) {
  const std::string endpoint = store.get("group/rpc/0/rpc/agent/zmq/" + std::to_string(rank));
  return endpoint.substr(endpoint.rfind(' ') + 1);
}

void call_all(const rpc::Worker& worker) {
  for (int to = 0; to < worker.world_size(); ++to) {
    EXPECT_EQ(worker.rpc_sync<std::vector<int>>(to, "reverse", std::vector<int>{1, 2, to}),
              (std::vector<int>{to, 2, 1}));
  }
}

// The number of TCP connections of this process, which are those of the agents.
int count_tcp_ends() {
  int count = 0;
  for (int fd = 3; fd < 4096; ++fd) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    const bool connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
    count += connected && peer.sin_family == AF_INET ? 1 : 0;
  }
  return count;
}

TEST(RpcZmqTest, AuthenticatesWorkersOfJobsWithASecret) {
  for (const bool secure : {false, true}) {
    std::optional<ScopedSecret> secret;
    if (secure) secret.emplace();
    const Store store = Store::inproc();
    on_ranks(3, [&store, secure](int rank) {
      const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("ZMQ", store, rank, 3));
      EXPECT_EQ(worker.backend(), "zmq");
      call_all(worker);
      EXPECT_EQ(key_of(store, rank).size(), secure ? 40U : 1U);
      worker.shutdown();
    });
  }
}

TEST(RpcZmqTest, UsesLocalSockets) {
  for (const bool local : {false, true}) {
    in_world(
        "ZMQ", 2,
        [local](const rpc::Worker& worker) {
          call_all(worker);
          EXPECT_EQ(count_tcp_ends() == 0, local);
          worker.all_gather(0);
        },
        local ? "?transport=ipc" : "");
  }
}

}  // namespace
}  // namespace backplane::test
