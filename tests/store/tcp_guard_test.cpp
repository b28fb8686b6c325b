// SPDX-License-Identifier: Apache-2.0
//
// Peers that do not speak the protocol, on both ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "store/wire.hpp"
#include "store_fixture.hpp"

namespace backplane::core {
namespace {

// A client without manners.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback(port);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const timeval limit = {60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(const std::string& bytes) { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Reads, and forgets, so many bytes. False if they do not come.
  bool skip(size_t bytes) {
    std::string buffer(size_t{1} << 20, '\0');
    while (bytes > 0) {
      const ssize_t got = ::recv(fd_, buffer.data(), std::min(bytes, buffer.size()), 0);
      if (got <= 0) return false;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }
  // Reads until the server closes the connection; what it said.
  std::string drain() {
    std::string all;
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
      if (got < 0 && errno == EAGAIN) ADD_FAILURE() << "the server keeps the connection";
      if (got <= 0) return all;
      all.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  const int fd_;
};

class TcpGuard : public testing::Test {
 protected:
  TcpStoreOptions to_server() const {
    TcpStoreOptions options;
    options.port = server_->port();
    return options;
  }
  uint16_t port() const { return server_->port(); }
  void expect_service() { EXPECT_GT(good_->add("n", 1, soon()), 0); }

  std::unique_ptr<TcpStoreServer> server_ = make_tcp_store_server({});
  std::shared_ptr<Store> good_ = make_tcp_store(to_server(), soon());
};

TEST_F(TcpGuard, GarbageClosesOnlyItsConnection) {
  std::mt19937 random(5);
  std::string noise(3000, '\0');
  for (char& c : noise) c = static_cast<char>(random() | 0x80);
  const std::string zero(4, '\0');
  const std::string wrong_magic = Packer().raw("bp-stork").u32(1).u32(0).u32(1).text("").frame();
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), noise, zero,
                                   std::string("\xff\xff\xff\xff", 4), std::string("\x01\x08\0\0", 4), wrong_magic}) {
    RawClient client(port());
    client.send(bytes);
    EXPECT_EQ(client.drain(), "");
    expect_service();
  }
}

TEST_F(TcpGuard, GarbageAfterTheHelloClosesTheConnection) {
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff", 4), Packer().raw("not a request").frame()}) {
    RawClient client(port());
    client.send(encode(Hello{}) + bytes);
    client.drain();
    expect_service();
  }
}

TEST_F(TcpGuard, AnotherVersionIsRefusedWithBothVersions) {
  RawClient client(port());
  Hello hello;
  hello.version = 99;
  client.send(encode(hello));
  const std::string answer = client.drain();
  ASSERT_GT(answer.size(), kSizeBytes);
  const auto welcome = decode_welcome(answer.substr(kSizeBytes));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->status, BP_INVALID);
  EXPECT_NE(welcome->text.find("speaks protocol 2, this rank speaks 99"), std::string::npos) << welcome->text;
}

TEST_F(TcpGuard, SlowUnauthenticatedClientsAreClosed) {
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 24; ++i) {
    slow.push_back(std::make_unique<RawClient>(port()));
    slow.back()->send(encode(Hello{}).substr(0, static_cast<size_t>(i)));
  }
  expect_service();
  const auto start = Deadline::Clock::now();
  for (const auto& client : slow) EXPECT_EQ(client->drain(), "");
  EXPECT_GE(Deadline::Clock::now() - start, std::chrono::seconds(4));  // a slow but honest rank has its time
  expect_service();
}

TEST_F(TcpGuard, AClientThatReadsNoRepliesIsPaused) {
  constexpr size_t kLarge = size_t{4} << 20;
  constexpr uint64_t kTimes = 40;  // much more than the server keeps for a client and the connection holds
  good_->set("large", std::string(kLarge, 'x'), soon());
  RawClient client(port());
  client.send(encode(Hello{}));
  for (uint64_t id = 1; id <= kTimes; ++id) client.send(encode(StoreRequest{id, Operation::kGet, 0, {"large"}}));
  client.send(encode(StoreRequest{kTimes + 1, Operation::kSet, 0, {"last", ""}}));
  expect_service();
  EXPECT_ERROR(BP_TIMEOUT, "last", good_->wait({"last"}, in_ms(500)));  // it is not listened to any more,
  EXPECT_TRUE(client.skip(kTimes * kLarge));
  good_->wait({"last"}, soon());  // until it has read
}

// A listener that does with its first connection what `serve` says.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int)> serve) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      const int client = ::accept(fd_, nullptr, nullptr);
      if (client < 0) return;
      serve(client);
      std::string heard(size_t{1} << 16, '\0');
      while (::recv(client, heard.data(), heard.size(), 0) > 0) {
      }
      ::close(client);
    });
  }
  ~FakeServer() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  TcpStoreOptions options() const {
    TcpStoreOptions options;
    options.port = port_;
    return options;
  }

 private:
  const int fd_;
  uint16_t port_ = 0;
  std::thread thread_;
};

void say(int fd, const std::string& bytes) { ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

TEST(TcpGuardClient, RefusesOtherServers) {
  const FakeServer http([](int fd) { say(fd, "HTTP/1.1 400 Bad StoreRequest\r\n\r\n"); });
  EXPECT_ERROR(BP_INVALID, "is not a Backplane store", make_tcp_store(http.options(), soon()));
  const FakeServer other([](int fd) { say(fd, Packer().raw("some other protocol").frame()); });
  EXPECT_ERROR(BP_INVALID, "is not a Backplane store", make_tcp_store(other.options(), soon()));
}

TEST(TcpGuardClient, SilenceIsATimeout) {
  const FakeServer silent([](int) {});
  EXPECT_ERROR(BP_TIMEOUT, "did not reply", make_tcp_store(silent.options(), in_ms(50)));
}

TEST(TcpGuardClient, AStalledServerIsATimeout) {
  const FakeServer stalled([](int fd) { say(fd, encode(Welcome{})); });
  const auto store = make_tcp_store(stalled.options(), soon());
  EXPECT_ERROR_LIKE(BP_TIMEOUT, R"(did not reply within ([0-9]|[1-4][0-9]|50) ms to a request for 'k')",
                    store->get("k", in_ms(50)));
  EXPECT_ERROR(BP_TIMEOUT, "did not reply", store->num_keys(in_ms(0)));
  EXPECT_ERROR(BP_TIMEOUT, "did not reply", store->set("k", std::string(size_t{16} << 20, 'x'), in_ms(50)));
  EXPECT_ERROR(BP_TIMEOUT, "did not reply", store->get("k", in_ms(1)));
}

TEST(TcpGuardClient, AMalformedReplyLosesTheServer) {
  const FakeServer mad([](int fd) { say(fd, encode(Welcome{}) + "\xff\xff\xff\xff"); });
  const auto store = make_tcp_store(mad.options(), soon());
  EXPECT_ERROR(BP_PEER_LOST, "too large", store->get("k", soon()));
}

}  // namespace
}  // namespace backplane::core
