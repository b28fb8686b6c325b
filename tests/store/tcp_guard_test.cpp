// SPDX-License-Identifier: Apache-2.0
//
// Peers that do not speak the protocol, on both ends.
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "store/raw_socket.hpp"
#include "store/tcp_listener.hpp"
#include "store/wire.hpp"
#include "store_fixture.hpp"
#include "support/descriptor_limit.hpp"
#include "support/eventually.hpp"
#include "support/scoped_log.hpp"

namespace backplane::core {
namespace {

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

// As without memory for one client.
TEST(TcpListener, AnExceptionEndsOnlyItsConnection) {
  boost::asio::io_context io{1};
  int connected = 0;
  const Listener listener(io, "127.0.0.1", 0, Deadline::after(0), [&io, &connected](const Tcp::socket&) {
    if (++connected == 1) throw std::bad_alloc();
    io.stop();
  });
  const RawClient first(listener.endpoint().port());
  const RawClient second(listener.endpoint().port());
  io.run_for(std::chrono::minutes(1));
  EXPECT_EQ(connected, 2);
}

TEST(TcpListener, SaysThatNoDescriptorIsLeft) {
  const test::ScopedLog log;
  boost::asio::io_context io{1};
  int connected = 0;
  const Listener listener(io, "127.0.0.1", 0, Deadline::after(0), [&io, &connected](const Tcp::socket&) {
    ++connected;
    io.stop();
  });
  const RawClient client(listener.endpoint().port());
  {
    const test::DescriptorLimit none(1);
    EXPECT_TRUE(test::eventually([&io, &log] {
      io.poll();
      return log.text().find("raise the limit of this process (ulimit -n, now 1)") != std::string::npos;
    }));
  }
  EXPECT_EQ(connected, 0);
  io.run_for(std::chrono::minutes(1));
  EXPECT_EQ(connected, 1);  // it waited
}

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

TEST_F(TcpGuard, ARefusalTellsNothingOfTheJob) {
  TcpStoreOptions options;
  options.job_id = "a very private id";
  const auto server = make_tcp_store_server(options);
  RawClient client(server->port());
  client.send(encode(Hello{.job_id = "a guess"}));
  const std::string answer = client.drain();
  EXPECT_NE(answer.find("belongs to another job, this rank is of job 'a guess'"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("private"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("pid"), std::string::npos) << "the server's identity";
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(::getpagesize());
}

// A frame that announces `size` bytes and has only `sent`.
std::string announced(size_t size, size_t sent) {
  return Packer().u32(static_cast<uint32_t>(size)).bytes() + std::string(sent, 'x');
}

TEST_F(TcpGuard, AnAnnouncedFrameTakesNoMemory) {
  constexpr int kClients = 16;
  const size_t before = resident_bytes();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->send(encode(Hello{}) + announced(kMaxFrameSize, 100));
    EXPECT_EQ(clients.back()->receive(1).size(), 1U) << "the welcome";
    expect_service();
  }
  EXPECT_LT(resident_bytes(), before + kClients * kMaxFrameSize / 8);
}

TEST_F(TcpGuard, UnfinishedFramesAreClosedInTime) {
  TcpStoreOptions options;
  options.heartbeat = {50'000'000, 300'000'000};
  const auto server = make_tcp_store_server(options);
  RawClient none(server->port());
  RawClient some(server->port());
  none.send(encode(Hello{}) + announced(kMaxFrameSize, 0));
  some.send(encode(Hello{}) + announced(1000, 999));
  none.drain();
  some.drain();
}

TEST_F(TcpGuard, StalledLargeFramesDelayOnlyLargeOnes) {
  TcpStoreOptions options;
  options.heartbeat = {2'000'000'000, 12'000'000'000};
  const auto server = make_tcp_store_server(options);
  options.port = server->port();
  std::vector<std::unique_ptr<RawClient>> stalled;
  for (int i = 0; i < 8; ++i) {
    stalled.push_back(std::make_unique<RawClient>(server->port()));
    stalled.back()->send(encode(Hello{}) + announced(kMaxFrameSize, 10'000));
    EXPECT_EQ(stalled.back()->receive(1).size(), 1U) << "the welcome";
  }
  const auto store = make_tcp_store(options, soon());
  store->set("small", std::string(size_t{1} << 19, 'x'), in_ms(11'900));
  store->set("large", std::string(size_t{3} << 20, 'x'), soon());  // once the stalled ones are closed
  EXPECT_EQ(store->get("large", soon()).size(), size_t{3} << 20);
}

TEST_F(TcpGuard, AClientThatReadsNoHeartbeatsIsPaused) {
  constexpr size_t kMost = size_t{48} << 20;  // more than the sockets of both ends buffer
  RawClient client(port());
  client.send(encode(Hello{}));
  std::string heartbeats;
  while (heartbeats.size() < 65536) heartbeats += encode(StoreRequest{kPushId, RequestKind::kHeartbeat, 0, {}});
  EXPECT_LT(client.send_until_blocked(heartbeats, kMost), kMost);
  expect_service();
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
  EXPECT_GE(Deadline::Clock::now() - start, std::chrono::seconds(4));  // slow ranks have time for their Hello
  expect_service();
}

TEST_F(TcpGuard, AClientThatReadsNoRepliesIsPaused) {
  constexpr size_t kLarge = size_t{4} << 20;
  constexpr uint64_t kTimes = 40;  // times kLarge: more than the server and the connection buffer
  good_->set("large", std::string(kLarge, 'x'), soon());
  RawClient client(port());
  client.send(encode(Hello{}));
  for (uint64_t id = 1; id <= kTimes; ++id) client.send(encode(StoreRequest{id, RequestKind::kGet, 0, {"large"}}));
  client.send(encode(StoreRequest{kTimes + 1, RequestKind::kSet, 0, {"last", ""}}));
  expect_service();
  EXPECT_ERROR(BP_TIMEOUT, "last", good_->wait({"last"}, in_ms(500)));  // the server does not read its requests
  EXPECT_EQ(client.receive(kTimes * kLarge).size(), kTimes * kLarge);
  good_->wait({"last"}, soon());  // after it has read the replies
}

// Calls `serve` with its first connection.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int)> serve) : fd_(listen_loopback(port_)) {
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
  uint16_t port_ = 0;
  const int fd_;
  std::thread thread_;
};

void say(int fd, const std::string& bytes) { ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

TEST(TcpGuardClient, RefusesOtherServers) {
  const FakeServer http([](int fd) { say(fd, "HTTP/1.1 400 Bad StoreRequest\r\n\r\n"); });
  EXPECT_ERROR(BP_INVALID, "is not a Backplane store", make_tcp_store(http.options(), soon()));
  const FakeServer other([](int fd) { say(fd, Packer().raw("some other protocol").frame()); });
  EXPECT_ERROR(BP_INVALID, "is not a Backplane store", make_tcp_store(other.options(), soon()));
}

// A server of 1.0.0-rc.1: the version of the protocol is the same.
TEST(TcpGuardClient, AServerThatDoesNotKnowARequestKeepsItsKeys) {
  const FakeServer old([](int fd) {
    char hello[4096];
    EXPECT_GT(::recv(fd, hello, sizeof hello, 0), 0);
    say(fd, encode(Welcome{}));
    const auto reply = [fd](uint64_t id, const std::string& number) {
      const std::string text = "operation " + number + " is unknown to this store";
      say(fd, encode_reply_head(id, BP_INVALID, text.size()) + text);
    };
    char bytes[4096];
    for (int number = 0; number < 2 && ::recv(fd, bytes, sizeof bytes, 0) > 0; ++number) {
      reply(number == 0 ? 1 : 2, number == 0 ? "16" : "15");
    }
  });
  const auto store = make_tcp_store(old.options(), soon());
  EXPECT_TRUE(store->removes_prefixes());
  EXPECT_NO_THROW(store->remove_prefix("group/", soon()));
  EXPECT_FALSE(store->removes_prefixes());
  EXPECT_NO_THROW(store->remove_prefix("group/", soon())) << "is not asked again";
  EXPECT_ERROR(BP_UNSUPPORTED, "is of an older release, which takes no reports of ended ranks",
               store->report_end({"", 1, "host, pid 1"}, "its process ended", soon()));
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
  const FakeServer malformed([](int fd) { say(fd, encode(Welcome{}) + "\xff\xff\xff\xff"); });
  const auto store = make_tcp_store(malformed.options(), soon());
  EXPECT_ERROR(BP_PEER_LOST, "too large", store->get("k", soon()));
}

}  // namespace
}  // namespace backplane::core
