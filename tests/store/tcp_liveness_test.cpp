// SPDX-License-Identifier: Apache-2.0
//
// Who is lost, who departs, and who only seems to be silent: over sockets.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "liveness/heartbeat.hpp"
#include "store/wire.hpp"
#include "store_fixture.hpp"

namespace backplane::core {
namespace {

// What one rank hears.
class Ear {
 public:
  std::function<void(const Loss&)> listener() {
    return [this](const Loss& loss) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(loss);
      changed_.notify_all();
    };
  }
  // The next thing it hears.
  Loss next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, soon().at(), [this] { return !heard_.empty(); })) {
      ADD_FAILURE() << "nothing is heard";
      return {};
    }
    const Loss loss = heard_.front();
    heard_.erase(heard_.begin());
    return loss;
  }
  bool silent() {
    const std::lock_guard lock(mutex_);
    return heard_.empty();
  }
  // False as soon as it hears something before that.
  bool stays_silent(Deadline until) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_until(lock, until.at(), [this] { return !heard_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Loss> heard_;
};

// A client that says only what it is told to.
class Mute {
 public:
  Mute(uint16_t port, const std::string& bytes) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback(port);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    send(encode(Hello{}) + bytes);
  }
  ~Mute() { ::close(fd_); }
  Mute(const Mute&) = delete;
  Mute& operator=(const Mute&) = delete;
  void send(const std::string& bytes) { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Ends once the server has read all of it: to close with answers unread would be a reset, which may overtake it.
  void finish() {
    ::shutdown(fd_, SHUT_WR);
    std::array<char, 256> answers{};
    while (::recv(fd_, answers.data(), answers.size(), 0) > 0) {
    }
  }
  // What comes until so many bytes are there, or the connection ends.
  std::string receive(size_t most) {
    std::string text;
    std::array<char, 65536> part{};
    while (text.size() < most) {
      const ssize_t size = ::recv(fd_, part.data(), std::min(part.size(), most - text.size()), 0);
      if (size <= 0) break;
      text.append(part.data(), static_cast<size_t>(size));
    }
    return text;
  }

 private:
  const int fd_;
};

std::string enrolment(const std::string& scope, int32_t rank) {
  return encode(StoreRequest{1, Operation::kEnroll, rank, {scope, "host, pid 9"}});
}

class TcpLiveness : public testing::Test {
 protected:
  static TcpStoreOptions served(Heartbeat heartbeat = {}) {
    TcpStoreOptions options;
    options.heartbeat = heartbeat;
    return options;
  }
  std::shared_ptr<Store> connect() const {
    TcpStoreOptions options;
    options.port = server_->port();
    return make_tcp_store(options, soon());
  }
  void restart(Heartbeat heartbeat) { server_ = make_tcp_store_server(served(heartbeat)); }
  // Until the server knows of so many lost or departed.
  static Absences absences(Membership& membership, size_t count) {
    Absences absences;
    const Deadline deadline = soon();
    while (absences.size() < count && !deadline.passed()) absences = membership.absences(soon());
    return absences;
  }

  std::unique_ptr<TcpStoreServer> server_ = make_tcp_store_server(served());
  Ear ear_;
};

TEST_F(TcpLiveness, AClosedConnectionIsALoss) {
  const auto store = connect();
  const auto membership = make_prefix_store(store, "g/")->enroll({"", 0, "host, pid 1"}, ear_.listener(), soon());
  EXPECT_TRUE(membership->watches());
  { const Mute gone(server_->port(), enrolment("g/", 3)); }
  const Loss loss = ear_.next();
  EXPECT_EQ(loss.rank, 3);
  EXPECT_FALSE(loss.store);
  EXPECT_EQ(loss.text, "rank 3 (host, pid 9) is lost: its process ended");
  EXPECT_EQ(membership->absences(soon()), (Absences{{3, Absence::kLost}}));
  Ear late;
  const auto other = connect();
  const auto second = other->enroll({"g/", 1, "host, pid 2"}, late.listener(), soon());
  EXPECT_EQ(late.next().text, loss.text);
}

TEST_F(TcpLiveness, MalformedDataIsALoss) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, ear_.listener(), soon());
  const Mute mad(server_->port(), enrolment("g", 3) + "\xff\xff\xff\xff");
  EXPECT_EQ(ear_.next().text, "rank 3 (host, pid 9) is lost: it sent malformed data");
}

TEST_F(TcpLiveness, LeavingIsNoLoss) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, ear_.listener(), soon());
  connect()->enroll(
      {"g", 1, "host, pid 2"}, [](const Loss&) {}, soon());  // and is gone
  Mute(server_->port(), enrolment("g", 2) + encode(StoreRequest{2, Operation::kLeave, 0, {}})).finish();
  EXPECT_EQ(absences(*membership, 2), (Absences{{1, Absence::kLeft}, {2, Absence::kLeft}}));
  EXPECT_TRUE(ear_.silent());
}

TEST_F(TcpLiveness, SilenceIsALoss) {
  restart({50'000'000, 1'000'000'000});
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, ear_.listener(), soon());
  const Mute mute(server_->port(), enrolment("g", 3));
  EXPECT_EQ(ear_.next().text,
            "rank 3 (host, pid 9) is lost: no heartbeat from it for 1 s; it may be suspended, or its network down");
  EXPECT_EQ(membership->absences(soon()), (Absences{{3, Absence::kLost}}));
}

TEST_F(TcpLiveness, AShutdownOfTheServerIsNoLoss) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, ear_.listener(), soon());
  server_.reset();
  EXPECT_ERROR(BP_PEER_LOST, "closed the connection", store->get("k", soon()));
  EXPECT_TRUE(ear_.stays_silent(in_ms(100)));  // news of a loss comes right behind that
}

TEST_F(TcpLiveness, TheShutdownNoticeFollowsQueuedReplies) {
  const std::string large(size_t{8} << 20, 'x');  // more than the connection holds
  connect()->set("large", large, soon());
  Mute reader(server_->port(), encode(StoreRequest{1, Operation::kGet, 0, {"large"}}));
  constexpr size_t kBegun = 4096;  // more than the welcome: the answer is on its way
  EXPECT_EQ(reader.receive(kBegun).size(), kBegun);
  std::thread end([this] { server_.reset(); });
  EXPECT_TRUE(reader.receive(SIZE_MAX).ends_with(encode(Push{Push::Kind::kShutdown, "", -1, ""})));
  end.join();
}

// A server that welcomes its client, answers its enrolment, and does no more until it ends.
class SilentServer {
 public:
  explicit SilentServer(const Welcome& welcome) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    options_.port = ntohs(address.sin_port);
    thread_ = std::thread([this, welcome] {
      const int client = ::accept(fd_, nullptr, nullptr);
      say(client, encode(welcome));
      // An answer that comes before its question is dropped.
      for (auto heard = hear(client); !heard || heard->operation != Operation::kEnroll;) heard = hear(client);
      say(client, encode_reply_head(1, BP_OK, 1) + "1");
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [this] { return end_; });
      ::close(client);
    });
  }
  ~SilentServer() {
    end();
    thread_.join();
    ::close(fd_);
  }
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;
  void end() {
    const std::lock_guard lock(mutex_);
    end_ = true;
    ended_.notify_all();
  }
  const TcpStoreOptions& options() const { return options_; }

 private:
  static void say(int client, const std::string& bytes) {
    EXPECT_EQ(::send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // The next frame, if it is a request.
  static std::optional<StoreRequest> hear(int client) {
    std::string size(kSizeBytes, '\0');
    if (::recv(client, size.data(), size.size(), MSG_WAITALL) != static_cast<ssize_t>(size.size())) std::abort();
    std::string body(decode_size(size.data()), '\0');
    if (::recv(client, body.data(), body.size(), MSG_WAITALL) != static_cast<ssize_t>(body.size())) std::abort();
    return decode_request(body);
  }

  const int fd_;
  TcpStoreOptions options_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

TEST_F(TcpLiveness, TheSilenceOfTheServerIsALoss) {
  SilentServer server({BP_OK, "", 2, "host, pid 5", {50'000'000, 1'000'000'000}});
  const auto store = make_tcp_store(server.options(), soon());
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, ear_.listener(), soon());
  const Loss loss = ear_.next();
  EXPECT_TRUE(loss.store);
  EXPECT_EQ(loss.rank, 2);
  EXPECT_EQ(loss.text,
            "rank 2 (host, pid 5) is lost: no heartbeat from it for 1 s; it may be suspended, or its network down");
}

TEST_F(TcpLiveness, TheEndOfTheServerIsALoss) {
  SilentServer server({BP_OK, "", -1, "host, pid 5", {}});
  const auto store = make_tcp_store(server.options(), soon());
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, ear_.listener(), soon());
  server.end();
  const Loss loss = ear_.next();
  EXPECT_TRUE(loss.store);
  EXPECT_EQ(loss.rank, -1);
  EXPECT_EQ(loss.text, "the store at " + store->describe() +
                           " (host, pid 5), which detects lost ranks, is lost: its process ended");
}

// ConnectionLimiter, and clients that lie about others, cannot end anybody.
TEST_F(TcpLiveness, HostileBytesLoseNoRank) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, ear_.listener(), soon());
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const Mute hostile(server_->port(), encode(StoreRequest{1, Operation::kWithdraw, 0, {"g"}}) + enrolment("g", 0) +
                                            encode(StoreRequest{3, Operation::kLeave, 0, {}}) + bytes);
    EXPECT_GT(store->add("n", 1, soon()), 0);
  }
  EXPECT_EQ(membership->absences(soon()), Absences());
  EXPECT_TRUE(ear_.silent());
}

TEST_F(TcpLiveness, TheEnvironmentSetsTheHeartbeat) {
  Environment environment;
  environment.set("BACKPLANE_HEARTBEAT_INTERVAL", std::nullopt);
  environment.set("BACKPLANE_HEARTBEAT_LIMIT", std::nullopt);
  EXPECT_EQ(environment_heartbeat().interval_ns, 1'000'000'000);
  EXPECT_EQ(environment_heartbeat().limit_ns, 10'000'000'000);
  environment.set("BACKPLANE_HEARTBEAT_INTERVAL", "250ms");
  environment.set("BACKPLANE_HEARTBEAT_LIMIT", "2");
  EXPECT_EQ(environment_heartbeat().interval_ns, 250'000'000);
  EXPECT_EQ(environment_heartbeat().limit_ns, 2'000'000'000);
  environment.set("BACKPLANE_HEARTBEAT_LIMIT", "soon");
  EXPECT_ERROR(BP_INVALID, "BACKPLANE_HEARTBEAT_LIMIT is 'soon', which is not a duration such as 250ms",
               make_tcp_store_server({}));
  environment.set("BACKPLANE_HEARTBEAT_LIMIT", "300ms");
  EXPECT_ERROR(BP_INVALID, "BACKPLANE_HEARTBEAT_LIMIT (300 ms) is less than twice", environment_heartbeat());
  environment.set("BACKPLANE_HEARTBEAT_LIMIT", "2h");
  EXPECT_ERROR(BP_INVALID, "is not between 0.01 s and 3600 s", environment_heartbeat());
}

}  // namespace
}  // namespace backplane::core
