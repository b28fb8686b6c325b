// SPDX-License-Identifier: Apache-2.0
//
// Tests of the TCP store alone: handshakes, lost servers, many clients.
#include <fcntl.h>

#include <filesystem>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "store/tcp_address.hpp"
#include "store_fixture.hpp"
#include "support/eventually.hpp"
#include "support/scoped_log.hpp"

namespace backplane::core {
namespace {

TcpStoreOptions at_port(uint16_t port) {
  TcpStoreOptions options;
  options.port = port;
  return options;
}

TEST(TcpStore, DescribesItsAddress) {
  const auto server = make_tcp_store_server({});
  const auto store = make_tcp_store(at_port(server->port()), soon());
  EXPECT_EQ(store->describe(), fmt::format("tcp://127.0.0.1:{}", server->port()));
}

TEST(TcpStore, HostNamesAndIpv6Work) {
  TcpStoreOptions options;
  options.host = "localhost";
  const auto server = make_tcp_store_server(options);
  options.port = server->port();
  const auto by_name = make_tcp_store(options, soon());
  by_name->set("k", "v", soon());
  EXPECT_EQ(by_name->get("k", soon()), "v");
  // With the address of the name.
  const std::string prefix = fmt::format("tcp://localhost:{} (", options.port);
  EXPECT_TRUE(by_name->describe().starts_with(prefix)) << by_name->describe();
  TcpStoreOptions six;
  six.host = "::1";
  std::unique_ptr<TcpStoreServer> six_server;
  try {
    six_server = make_tcp_store_server(six);
  } catch (const Error& e) {
    GTEST_SKIP() << "no IPv6 here: " << e.what();
  }
  six.port = six_server->port();
  const auto store = make_tcp_store(six, soon());
  store->set("k", "v", soon());
  EXPECT_EQ(store->get("k", soon()), "v");
  EXPECT_EQ(store->describe(), fmt::format("tcp://[::1]:{}", six.port));
  six.host = "[::1]";
  EXPECT_EQ(make_tcp_store(six, soon())->describe(), store->describe());
}

TEST(TcpStore, APortInUseIsAnError) {
  const auto server = make_tcp_store_server({});
  const std::string where = fmt::format("127.0.0.1:{}", server->port());
  EXPECT_ERROR(BP_RESOURCE, "cannot listen on " + where + ": the port is in use",
               make_tcp_store_server(at_port(server->port())));
}

// The DNS of a cluster may learn the name later.
TEST(TcpStore, AHostNameThatIsNotKnownIsLookedUpAgain) {
  const test::ScopedLog log;
  TcpStoreOptions options;
  options.host = std::string(64, 'x') + ".invalid";  // longer than a name may be: no server is asked for it
  options.resolve_ns = 250'000'000;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_ERROR(BP_INVALID, "use an address of the machine on which rank 0 runs", make_tcp_store_server(options));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(250));
  EXPECT_NE(log.text().find("cannot be resolved"), std::string::npos) << log.text();
  options.host = "192.0.2.1";  // of no machine
  options.resolve_ns = -1;
  EXPECT_ERROR(BP_INVALID, "cannot listen on 192.0.2.1", make_tcp_store_server(options));
}

TEST(TcpStore, APortCanBeUsedAgainAtOnce) {
  const uint16_t port = free_port();
  for (int round = 0; round < 5; ++round) {
    const auto server = make_tcp_store_server(at_port(port));
    const auto store = make_tcp_store(at_port(port), soon());
    EXPECT_EQ(store->add("n", 1, soon()), 1);
  }
}

TEST(TcpStore, RefusesWildcardAddresses) {
  TcpStoreOptions options;
  for (const char* host : {"0.0.0.0", "::", "[::]", "::ffff:0.0.0.0"}) {
    options.host = host;
    EXPECT_ERROR(BP_INVALID, "every interface", make_tcp_store_server(options));
  }
  options.host = "192.0.2.1";  // reserved for documentation
  EXPECT_ERROR(BP_INVALID, "use an address of the machine on which rank 0 runs", make_tcp_store_server(options));
}

TEST(TcpStore, AServerReportsItsAddress) {
  TcpStoreOptions options;
  options.host = "localhost";
  const auto server = make_tcp_store_server(options);
  const std::string address = server->address();
  EXPECT_TRUE(address == fmt::format("127.0.0.1:{}", server->port()) ||
              address == fmt::format("[::1]:{}", server->port()))
      << address;
  options.host = "::1";
  try {
    const auto six = make_tcp_store_server(options);
    EXPECT_EQ(six->address(), fmt::format("[::1]:{}", six->port()));
  } catch (const Error& e) {
    GTEST_SKIP() << "no IPv6 here: " << e.what();
  }
}

TEST(TcpStore, TheReachableAddressIsOneOfThisHost) {
  TcpStoreOptions options;
  options.host = reachable_address();
  ErrorCode error;
  const auto address = boost::asio::ip::make_address(options.host, error);
  EXPECT_FALSE(error) << options.host;
  EXPECT_FALSE(address.is_unspecified());
  const auto server = make_tcp_store_server(options);
  options.port = server->port();
  EXPECT_EQ(server->address(), host_port(options.host, options.port));
  EXPECT_EQ(make_tcp_store(options, soon())->add("n", 1, soon()), 1);
}

TEST(TcpStore, AServerWaitsForItsClients) {
  const auto server = make_tcp_store_server({});
  server->wait(in_ms(0));  // no client has connected
  TcpStoreOptions options = at_port(server->port());
  auto nameless = make_tcp_store(options, soon());
  EXPECT_ERROR_LIKE(BP_TIMEOUT,
                    "^1 client of the store at 127.0.0.1:[0-9]+ is still connected after .*: 127.0.0.1:[0-9]+$",
                    server->wait(in_ms(0)));
  options.rank = 3;
  auto rank = make_tcp_store(options, soon());
  EXPECT_ERROR_LIKE(BP_TIMEOUT, "2 clients of .* are still connected after .*, rank 3 at 127.0.0.1:[0-9]+$",
                    server->wait(in_ms(1)));
  auto membership = rank->enroll(
      {"", 3, "host, pid 17"}, [](const Loss&) {}, soon());
  EXPECT_ERROR(BP_TIMEOUT, ", rank 3 (host, pid 17)", server->wait(in_ms(0)));
  auto all_gone = std::async(std::launch::async, [&server] { server->wait(soon()); });
  nameless.reset();
  EXPECT_TRUE(test::eventually([&server] {  // the other one
    return std::string(error_of([&server] { server->wait(in_ms(1)); }).what()).starts_with("1 client of");
  }));
  rank->set("still", "served", soon());
  membership.reset();
  rank.reset();
  all_gone.get();
  make_tcp_store(options, soon())->set("later", "served", soon());
  server->wait(soon());
}

TEST(TcpStore, LongListsOfClientsAreCut) {
  const auto server = make_tcp_store_server({});
  std::vector<std::shared_ptr<Store>> clients;
  for (int i = 0; i < 10; ++i) clients.push_back(make_tcp_store(at_port(server->port()), soon()));
  EXPECT_ERROR_LIKE(BP_TIMEOUT, "^10 clients .* and 2 more$", server->wait(in_ms(0)));
}

TEST(TcpStore, JobsDoNotMix) {
  TcpStoreOptions options;
  options.job_id = "A";
  const auto server = make_tcp_store_server(options);
  options.port = server->port();
  make_tcp_store(options, soon())->set("k", "v", soon());
  options.job_id = "B";
  EXPECT_ERROR(BP_INVALID, "belongs to another job, this rank is of job 'B'", make_tcp_store(options, soon()));
  options.job_id = std::string(5000, 'B');
  EXPECT_ERROR(BP_INVALID, "the job id has 5000 bytes", make_tcp_store(options, soon()));
}

TEST(TcpStore, WorldSizesMustAgree) {
  TcpStoreOptions options;
  options.world_size = 4;
  const auto server = make_tcp_store_server(options);
  options.port = server->port();
  options.rank = 2;
  options.world_size = 8;
  EXPECT_ERROR(BP_INVALID, "a job of 4 ranks, but rank 2 was started with a world size of 8",
               make_tcp_store(options, soon()));
  options.world_size = -1;  // it does not say
  EXPECT_EQ(make_tcp_store(options, soon())->add("n", 1, soon()), 1);
}

TEST(TcpStore, WithoutAServerConnectTimesOut) {
  const uint16_t port = free_port();
  EXPECT_ERROR_LIKE(
      BP_TIMEOUT,
      fmt::format("could not reach the store at 127.0.0.1:{} within ([0-9]|[1-4][0-9]|50) ms: Connection refused",
                  port),
      make_tcp_store(at_port(port), in_ms(50)));
  TcpStoreOptions options = at_port(port);
  options.host = std::string(64, 'x');  // longer than a name may be: no server is asked for it
  EXPECT_ERROR(BP_TIMEOUT, "cannot resolve the host name", make_tcp_store(options, in_ms(50)));
}

TEST(TcpStore, AClientThatWaitsForItsServerSaysWhy) {
  test::ScopedLog log;
  TcpStoreOptions options = at_port(free_port());
  options.warn_after_ns = 20'000'000;
  EXPECT_ERROR(BP_TIMEOUT, "could not reach the store", make_tcp_store(options, in_ms(2000)));
  const std::string line = fmt::format("cannot reach the store at 127.0.0.1:{} yet: Connection refused", options.port);
  const std::string text = log.text();
  EXPECT_NE(text.find(line), std::string::npos) << text;
  EXPECT_EQ(text.find(line), text.rfind(line)) << text;
}

TEST(TcpStore, ConnectsToAServerThatStartsLater) {
  const uint16_t port = free_port();
  auto store = std::async(std::launch::async, [port] { return make_tcp_store(at_port(port), soon()); });
  const auto server = make_tcp_store_server(at_port(port));
  const auto late = store.get();
  late->set("k", "v", soon());
  EXPECT_EQ(late->get("k", soon()), "v");
}

TEST(TcpStore, TheEndOfTheServerEndsCalls) {
  auto server = make_tcp_store_server({});
  const auto store = make_tcp_store(at_port(server->port()), soon());
  auto waiting = std::async(std::launch::async, [&store] { return error_of([&store] { store->get("k", soon()); }); });
  store->set("x", "", soon());
  server.reset();
  const Error error = waiting.get();
  EXPECT_EQ(error.status(), BP_PEER_LOST);
  EXPECT_NE(std::string(error.what()).find(store->describe()), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("closed the connection"), std::string::npos) << error.what();
  EXPECT_ERROR(BP_PEER_LOST, "look at the output of the process that hosts it", store->set("k", "v", soon()));
}

TEST(TcpStore, AnEndingStoreRefusesNewClients) {
  TcpStoreOptions options = at_port(free_port());
  options.closing_key = "over";
  auto server = make_tcp_store_server(options);
  const uint16_t port = server->port();
  const auto first = make_tcp_store(at_port(port), soon());
  first->set("over", "", soon());
  EXPECT_ERROR(BP_TIMEOUT, "is about to end", make_tcp_store(at_port(port), in_ms(50)));
  auto next = std::async(std::launch::async, [port] { return make_tcp_store(at_port(port), soon()); });
  server.reset();
  server = make_tcp_store_server(at_port(port));
  EXPECT_FALSE(next.get()->check({"over"}, soon()));
}

TEST(TcpStore, ServesManyClients) {
  constexpr int kClients = 64;
  const auto server = make_tcp_store_server({});
  std::vector<std::shared_ptr<Store>> stores;
  for (int i = 0; i < kClients; ++i) stores.push_back(make_tcp_store(at_port(server->port()), soon()));
  std::vector<std::future<std::string>> values;
  for (const auto& store : stores) {
    values.push_back(std::async(std::launch::async, [&store] {
      if (store->add("n", 1, soon()) == kClients) store->set("all", "here", soon());
      return store->get("all", soon());
    }));
  }
  for (auto& value : values) EXPECT_EQ(value.get(), "here");
}

TEST(TcpStore, SocketsAreNotInherited) {
  const auto server = make_tcp_store_server({});
  const auto store = make_tcp_store(at_port(server->port()), soon());
  store->set("k", "v", soon());
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    const int fd = std::stoi(entry.path().filename().string());
    if (fd <= 2 || !target.starts_with("socket:")) continue;
    ++sockets;
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << target;
  }
  EXPECT_GE(sockets, 3) << "the listener and both ends";
}

}  // namespace
}  // namespace backplane::core
