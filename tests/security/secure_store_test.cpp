// SPDX-License-Identifier: Apache-2.0
//
// The TCP store of a job with a secret: accepted clients, and attacks on the connection.
#include <sys/resource.h>

#include <atomic>

#include <mutex>
#include <random>
#include <vector>

#include "backplane/base/pending_connections.hpp"
#include "log.hpp"
#include "security/connection_limiter.hpp"
#include "security/handshake.hpp"
#include "security/relay.hpp"
#include "security/secret.hpp"
#include "store/store_fixture.hpp"
#include "store/wire.hpp"

namespace backplane::core {
namespace {

std::shared_ptr<const Secret> secret(const std::string& bytes = "a secret of 32 random bytes, say") {
  return std::make_shared<const Secret>(bytes, "this test");
}

// Collects the log of the core during its lifetime.
class Log {
 public:
  Log() { set_log(take, this); }
  ~Log() { set_log(nullptr, nullptr); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  static void take(void* ctx, uint32_t, const char* text) {
    auto& log = *static_cast<Log*>(ctx);
    const std::lock_guard lock(log.mutex_);
    log.lines_.emplace_back(text);
  }
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

class SecureStore : public testing::Test {
 protected:
  SecureStore() {
    options_.secret = secret();
    options_.job_id = "the job";
    server_ = make_tcp_store_server(options_);
    options_.port = server_->port();
  }

  // Through the relay.
  TcpStoreOptions via(const Relay& relay) const {
    TcpStoreOptions options = options_;
    options.port = relay.port();
    return options;
  }
  void expect_service() {
    const auto store = make_tcp_store(options_, soon());
    EXPECT_GT(store->add("service", 1, soon()), 0);
  }

  Log log_;
  TcpStoreOptions options_;
  std::unique_ptr<TcpStoreServer> server_;
};

TEST_F(SecureStore, ServesClientsWithTheSecret) {
  const auto one = make_tcp_store(options_, soon());
  const auto two = make_tcp_store(options_, soon());
  const std::string large(size_t{5} << 20, 'x');
  one->set("large", large, soon());
  EXPECT_EQ(two->get("large", soon()), large);
  one->set("empty", "", soon());
  EXPECT_EQ(two->get("empty", soon()), "");
  for (int i = 1; i <= 500; ++i) EXPECT_EQ((i % 2 == 0 ? one : two)->add("n", 1, soon()), i);
  EXPECT_ERROR_LIKE(BP_TIMEOUT, "waited ([0-9]|1[0-9]|20) ms for 'never'", one->get("never", in_ms(20)));
  EXPECT_TRUE(log_.lines().empty());
}

TEST_F(SecureStore, RefusesClientsWithoutTheSecret) {
  TcpStoreOptions options = options_;
  options.secret = nullptr;
  options.job_id = "another";  // of which it learns nothing
  EXPECT_ERROR(BP_INVALID, "has a job secret, this rank has none; give", make_tcp_store(options, soon()));
  expect_service();
}

TEST_F(SecureStore, RefusesAnotherSecretAndWarnsOnce) {
  TcpStoreOptions options = options_;
  options.secret = secret("a secret of 32 random bytes, too");
  options.job_id = "another";
  for (int i = 0; i < 20; ++i) {
    EXPECT_ERROR(BP_INVALID, "has another job secret than this rank", make_tcp_store(options, soon()));
  }
  expect_service();
  const auto lines = log_.lines();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("refused a client which has another secret"), std::string::npos) << lines[0];
  EXPECT_EQ(lines[0].find("random bytes"), std::string::npos) << lines[0];
}

TEST_F(SecureStore, AStoreWithoutASecretIsNotTrusted) {
  TcpStoreOptions plain;
  const auto server = make_tcp_store_server(plain);
  TcpStoreOptions options = options_;
  options.port = server->port();
  EXPECT_ERROR(BP_INVALID, "has no job secret, but this rank has one", make_tcp_store(options, soon()));
  plain.port = server->port();
  EXPECT_EQ(make_tcp_store(plain, soon())->add("n", 1, soon()), 1);
}

TEST_F(SecureStore, RefusesAnotherJobWithTheSameSecret) {
  TcpStoreOptions options = options_;
  options.job_id = "other";
  EXPECT_ERROR(BP_INVALID, "belongs to another job, this rank is of job 'other'", make_tcp_store(options, soon()));
}

TEST_F(SecureStore, FramesAreEncrypted) {
  Relay relay(options_.port);
  {
    const auto store = make_tcp_store(via(relay), soon());
    store->set("a plain key", "a plain value", soon());
    EXPECT_EQ(store->get("a plain key", soon()), "a plain value");
    EXPECT_ERROR(BP_TIMEOUT, "missing", store->get("missing", in_ms(1)));
  }
  relay.stop();
  for (const std::string& said : {relay.to_server(), relay.to_client()}) {
    EXPECT_GT(said.size(), 100U);
    for (const char* word : {"plain", "job", "missing", "pid", "random bytes"}) {
      EXPECT_EQ(said.find(word), std::string::npos) << word;
    }
  }
}

TEST_F(SecureStore, ReplaysAreRefused) {
  Relay relay(options_.port);
  {
    const auto store = make_tcp_store(via(relay), soon());
    EXPECT_EQ(store->add("count", 1, soon()), 1);
  }
  relay.stop();
  const std::string answer = RawClient(options_.port, relay.to_server()).drain();
  // The key of this connection, then the refusal, which is not sealed.
  const size_t first = kSizeBytes + decode_size(answer.data());
  ASSERT_GT(answer.size(), first + kSizeBytes);
  const auto refusal = decode_welcome(std::string_view(answer).substr(first + kSizeBytes));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, BP_INVALID);
  EXPECT_EQ(make_tcp_store(options_, soon())->add("count", 1, soon()), 2);
}

TEST_F(SecureStore, ChangedFramesAreRefused) {
  const auto talk = [this](const Relay& relay) {
    const auto store = make_tcp_store(via(relay), soon());
    store->set("a", "1", soon());
    return store->get("a", soon());
  };
  size_t said[2] = {0, 0};
  {
    Relay honest(options_.port);
    EXPECT_EQ(talk(honest), "1");
    honest.stop();
    said[0] = honest.to_server().size();
    said[1] = honest.to_client().size();
  }
  // Sizes are not changed: with a larger one the receiver would only wait for more bytes.
  for (const auto way : {Relay::Way::kToServer, Relay::Way::kToClient}) {
    int noticed = 0;
    for (size_t at = 20; at < said[way == Relay::Way::kToServer ? 0 : 1]; at += 13) {
      bool changed = false;
      std::optional<Error> error;
      {
        const Relay relay(options_.port, [way, at, &changed](Relay::Way now, size_t offset, std::string& bytes) {
          if (now != way || at < offset + kSizeBytes || at >= offset + bytes.size()) return true;
          bytes[at - offset] = static_cast<char>(bytes[at - offset] ^ 0x10);
          changed = true;
          return true;
        });
        try {
          EXPECT_EQ(talk(relay), "1");
        } catch (const Error& e) {
          error = e;
        }
      }
      if (!changed) continue;
      ++noticed;
      // The last frame of a client gets no reply.
      if (!error && way == Relay::Way::kToServer && at + 100 > said[0]) continue;
      ASSERT_TRUE(error) << "a changed byte at " << at << " was believed";
      EXPECT_TRUE(error->status() == BP_INVALID || error->status() == BP_PEER_LOST) << at << ": " << error->what();
    }
    EXPECT_GT(noticed, 5);
  }
  expect_service();
}

TEST_F(SecureStore, ACutConnectionIsAnError) {
  for (const size_t most : {10, 60, 100, 150}) {
    const Relay relay(options_.port, [most](Relay::Way way, size_t offset, std::string& bytes) {
      if (way == Relay::Way::kToServer || offset + bytes.size() <= most) return true;
      bytes.resize(most > offset ? most - offset : 0);
      return false;
    });
    const Error error = error_of([&] {
      const auto store = make_tcp_store(via(relay), in_ms(300));
      store->set("a", "1", soon());
      for (int i = 0; i < 20; ++i) store->get("a", soon());
    });
    EXPECT_TRUE(error.status() == BP_TIMEOUT || error.status() == BP_PEER_LOST) << error.what();
  }
}

TEST_F(SecureStore, KeysOfSmallOrderAreRefused) {
  EXPECT_EQ(RawClient(options_.port, encode_key_offer(std::string(kKeySize, '\0'))).drain(), "");
  expect_service();
}

TEST_F(SecureStore, AClientWithoutTheSecretIsRefusedAfterTheKeyExchange) {
  for (const size_t size : {1, 15, 16, 64, 2000}) {
    RawClient client(options_.port, encode_key_offer(KeyExchange(KeyExchange::End::kClient).public_key()));
    client.send(Packer().raw(std::string(size, 'x')).frame());
    const std::string answer = client.drain();
    EXPECT_NE(answer.find("has another job secret"), std::string::npos) << size;
    EXPECT_EQ(answer.find("the job"), answer.find("the job secret")) << "a word of the job";
  }
  RawClient client(options_.port, encode_key_offer(KeyExchange(KeyExchange::End::kClient).public_key()));
  client.send(Packer().u32(1U << 20).bytes());  // longer than a Hello may be: closed before memory is allocated
  EXPECT_EQ(client.drain().size(), encode_key_reply(std::string(kKeySize, 'k')).size());
}

// More idle connections than the server keeps, and connections with invalid bytes.
TEST_F(SecureStore, AFloodLocksOutNoRank) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const size_t flood = std::min<size_t>(base::max_pending_connections() + 100, static_cast<size_t>(limit.rlim_cur) / 2);
  ASSERT_GT(flood, base::max_pending_connections());
  constexpr std::chrono::seconds kIdleTime(5);  // after which each is closed, however many there are
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int> idle;
  for (size_t i = 0; i < flood; ++i) idle.push_back(dial_loopback(options_.port));
  pollfd oldest = {idle.front(), POLLIN, 0};
  pollfd newest = {idle.back(), POLLIN, 0};
  EXPECT_EQ(::poll(&oldest, 1, 60'000), 1) << "the server keeps all that come";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kIdleTime) << "closed because of its age";
  EXPECT_EQ(::poll(&newest, 1, 0), 0) << "the newest is closed";
  std::atomic<bool> over = false;
  std::thread noise([this, &over] {
    std::mt19937 random(7);
    while (!over) {
      const int fd = dial_loopback(options_.port);
      std::string bytes(1 + random() % 3000, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ::close(fd);
    }
  });
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([this] {
      const auto store = make_tcp_store(options_, soon());
      for (int i = 0; i < 50; ++i) store->add("work", 1, soon());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(make_tcp_store(options_, soon())->add("work", 0, soon()), 200);
  over = true;
  noise.join();
  for (const int fd : idle) ::close(fd);
}

TEST(ConnectionLimiter, ClosesTheOldestOfTheSameAddress) {
  using boost::asio::ip::make_address;
  ConnectionLimiter limiter(6, 3);
  const auto a = make_address("10.0.0.1");
  const auto b = make_address("10.0.0.2");
  const auto c = make_address("10.0.0.3");
  for (const ConnectionId id : {1, 2, 3}) EXPECT_FALSE(limiter.admit(id, a));
  EXPECT_EQ(limiter.admit(4, a), ConnectionId{1});
  limiter.release(1);  // once more, as its session closes
  EXPECT_EQ(limiter.size(), 3U);
  EXPECT_FALSE(limiter.admit(5, b));
  EXPECT_FALSE(limiter.admit(6, b));
  EXPECT_FALSE(limiter.admit(7, c));
  EXPECT_EQ(limiter.admit(8, c), ConnectionId{2}) << "of the address that has the most";
  limiter.release(5);
  EXPECT_FALSE(limiter.admit(9, b));
}

TEST(ConnectionLimiter, ANetworkOfIpv6CountsAsOneAddress) {
  using boost::asio::ip::make_address;
  ConnectionLimiter limiter(6, 2);
  EXPECT_FALSE(limiter.admit(1, make_address("2001:db8::1")));
  EXPECT_FALSE(limiter.admit(2, make_address("2001:db8::2")));
  EXPECT_EQ(limiter.admit(3, make_address("2001:db8::3")), ConnectionId{1});
  EXPECT_FALSE(limiter.admit(4, make_address("2001:db8:1::3")));
}

TEST(ConnectionLimiter, AWildcardIsRefusedWithASecret) {
  TcpStoreOptions options;
  options.secret = secret();
  options.host = "0.0.0.0";
  EXPECT_ERROR(BP_INVALID, "every interface of this machine", make_tcp_store_server(options));
}

}  // namespace
}  // namespace backplane::core
