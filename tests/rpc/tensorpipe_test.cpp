// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

// Connects to "...uv://127.0.0.1:port" and leaves without a word. False if nobody listens there.
bool knock(const std::string& card) {
  const size_t colon = card.find(':', card.find("uv://") + 5);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(card.substr(colon + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const bool open = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(socket);
  return open;
}

TEST(RpcTensorPipeTest, IsTakenIfNobodyNamesAnother) {
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    options.backend.clear();
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    EXPECT_EQ(worker.backend(), "tensorpipe");
    worker.shutdown();
  });
}

TEST(RpcTensorPipeTest, TakesTransportsAndChannelsByName) {
  rpc::register_function("same array", [](const rpc::Array<int>& array) { return array; });
  for (const char* agent :
       {"?transports=uv&channels=basic", "?transports=uv&channels=basic+mpt", "?transports=shm+uv"}) {
    in_world(
        "tensorpipe", 2,
        [](const rpc::Worker& worker) {
          const rpc::Array<int> sent(std::vector<int>(100000, worker.rank()));
          const auto back = worker.rpc_sync<rpc::Array<int>>(1 - worker.rank(), "same array", sent);
          EXPECT_EQ(std::vector<int>(back.begin(), back.end()), std::vector<int>(sent.begin(), sent.end()));
        },
        agent);
  }
  std::string text;
  rpc::RpcOptions options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?transports=pigeon");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("transports does not know 'pigeon'; there are uv, shm"), std::string::npos) << text;
  options = rpc_options("tensorpipe", Store::inproc(), 0, 1, "?device_maps=you:0=0");
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("maps to worker you, which there is not"), std::string::npos) << text;
}

TEST(RpcTensorPipeTest, StrangersWhoComeAndGoLockNobodyOut) {
  rpc::register_function("one", [] { return 1; });
  Store store = Store::inproc();
  on_ranks(3, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("tensorpipe", store, rank, 3));
    if (rank == 0) {
      EXPECT_EQ(worker.rpc_sync<int>(1, "one"), 1);
      const std::string key = "group/rpc/0/rpc/agent/worker/1";
      EXPECT_TRUE(knock(store.get(key)));
      for (int i = 0; i < 2; ++i) knock(store.get(key));  // the listener may be about to be replaced
    }
    worker.all_gather(0);
    // Who comes while the listener is being replaced fails, and is told; not for long.
    int got = 0;
    for (int i = 0; i < 1000 && got == 0; ++i) {
      try {
        got = worker.rpc_sync<int>((rank + 1) % 3, "one");
      } catch (const Error& e) {
        EXPECT_EQ(e.status(), Status::kPeerLost) << e.what();
      }
    }
    EXPECT_EQ(got, 1);
    worker.shutdown();
  });
}

}  // namespace
}  // namespace backplane::test
