// SPDX-License-Identifier: Apache-2.0
//
// Detection of lost, leaving and silent ranks over sockets.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "backplane/base/host.hpp"
#include "liveness/heartbeat.hpp"
#include "liveness/membership_table.hpp"
#include "liveness/process_identity.hpp"
#include "store/raw_socket.hpp"
#include "store/wire.hpp"
#include "store_fixture.hpp"

namespace backplane::core {
namespace {

// The losses of which one rank is notified.
class LossLog {
 public:
  std::function<void(const Loss&)> listener() {
    return [this](const Loss& loss) {
      const std::lock_guard lock(mutex_);
      losses_.push_back(loss);
      changed_.notify_all();
    };
  }
  // Waits for the next one.
  Loss next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, soon().at(), [this] { return !losses_.empty(); })) {
      ADD_FAILURE() << "no loss is reported";
      return {};
    }
    const Loss loss = losses_.front();
    losses_.erase(losses_.begin());
    return loss;
  }
  bool silent() {
    const std::lock_guard lock(mutex_);
    return losses_.empty();
  }
  // Returns false as soon as there is one earlier.
  bool stays_silent(Deadline until) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_until(lock, until.at(), [this] { return !losses_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Loss> losses_;
};

std::string enrolment(const std::string& scope, int32_t rank) {
  return encode(StoreRequest{1, RequestKind::kEnroll, rank, {scope, "host, pid 9"}});
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
  // Waits until the server has noted that many lost or left ranks.
  static Absences absences(Membership& membership, size_t count) {
    Absences absences;
    const Deadline deadline = soon();
    while (absences.size() < count && !deadline.passed()) absences = membership.absences(soon());
    return absences;
  }

  std::unique_ptr<TcpStoreServer> server_ = make_tcp_store_server(served());
  LossLog losses_;
};

TEST_F(TcpLiveness, AClosedConnectionIsALoss) {
  const auto store = connect();
  const auto membership = make_prefix_store(store, "g/")->enroll({"", 0, "host, pid 1"}, losses_.listener(), soon());
  EXPECT_TRUE(membership->watches());
  { RawClient(server_->port(), encode(Hello{}) + enrolment("g/", 3)).finish(); }
  const Loss loss = losses_.next();
  EXPECT_EQ(loss.rank, 3);
  EXPECT_FALSE(loss.store);
  EXPECT_EQ(loss.text, "rank 3 (host, pid 9) is lost: its process ended");
  EXPECT_EQ(membership->absences(soon()), (Absences{{3, Absence::kLost}}));
  LossLog late;
  const auto other = connect();
  const auto second = other->enroll({"g/", 1, "host, pid 2"}, late.listener(), soon());
  EXPECT_EQ(late.next().text, loss.text);
}

// Of a process with this identity: a connection that is closed, or reset.
enum class Ending { kClosed, kReset };
std::string text_of_loss(uint16_t port, LossLog& losses, int32_t rank, const std::string& identity, Ending ending) {
  {
    RawClient gone(port);
    const StoreRequest enrolment{1, RequestKind::kEnroll, rank, {"g", identity}};
    gone.send(encode(Hello{}) + encode(enrolment));
    gone.skip_frame();  // the welcome
    gone.skip_frame();  // the reply
    ending == Ending::kReset ? gone.reset_on_close() : gone.finish();
  }
  return losses.next().text;
}

TEST_F(TcpLiveness, ALossSaysHowTheConnectionEnded) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  const auto ended = [this](int32_t rank, const std::string& identity, Ending ending) {
    const std::string text = text_of_loss(server_->port(), losses_, rank, identity, ending);
    const std::string front = loss_text(rank, identity, "");
    EXPECT_TRUE(text.starts_with(front)) << text;
    return text.substr(std::min(front.size(), text.size()));
  };
  EXPECT_EQ(ended(1, "elsewhere, pid 9", Ending::kClosed), "its process ended");
  EXPECT_EQ(ended(2, "elsewhere, pid 9", Ending::kReset), "its connection to the store was reset");
  // Of a process of this host that runs, and of one that is a zombie.
  const std::string running = process_identity();
  EXPECT_EQ(ended(3, running, Ending::kClosed), "its connection to the store was closed without a goodbye");
  EXPECT_EQ(ended(4, running, Ending::kReset), "its connection to the store was reset");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const std::string dead = fmt::format("{}, pid {}", base::host_name(), child);
  EXPECT_EQ(ended(5, dead, Ending::kReset), "its process ended");
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(ended(6, dead, Ending::kClosed), "its process ended");
  EXPECT_EQ(ended(7, dead, Ending::kReset), "its process ended");
}

TEST_F(TcpLiveness, MalformedDataIsALoss) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  const RawClient malformed(server_->port(), encode(Hello{}) + enrolment("g", 3) + "\xff\xff\xff\xff");
  EXPECT_EQ(losses_.next().text, "rank 3 (host, pid 9) is lost: it sent malformed data");
}

TEST_F(TcpLiveness, LeavingIsNoLoss) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  connect()->enroll(
      {"g", 1, "host, pid 2"}, [](const Loss&) {}, soon());  // and disconnects
  RawClient(server_->port(), encode(Hello{}) + enrolment("g", 2) + encode(StoreRequest{2, RequestKind::kLeave, 0, {}}))
      .finish();
  EXPECT_EQ(absences(*membership, 2), (Absences{{1, Absence::kLeft}, {2, Absence::kLeft}}));
  EXPECT_TRUE(losses_.silent());
}

TEST_F(TcpLiveness, SilenceIsALoss) {
  restart({50'000'000, 3'000'000'000});
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  const RawClient mute(server_->port(), encode(Hello{}) + enrolment("g", 3));
  EXPECT_EQ(losses_.next().text,
            "rank 3 (host, pid 9) is lost: no heartbeat from it for 3 s; it may be suspended, or its network down");
  EXPECT_EQ(membership->absences(soon()), (Absences{{3, Absence::kLost}}));
}

TEST_F(TcpLiveness, AShutdownOfTheServerIsNoLoss) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  server_.reset();
  EXPECT_ERROR(BP_PEER_LOST, "closed the connection", store->get("k", soon()));
  EXPECT_TRUE(losses_.stays_silent(in_ms(100)));  // a notice of a loss would follow the shutdown
}

TEST_F(TcpLiveness, TheShutdownNoticeFollowsQueuedReplies) {
  const std::string large(size_t{8} << 20, 'x');  // more than the connection holds
  connect()->set("large", large, soon());
  RawClient reader(server_->port(), encode(Hello{}) + encode(StoreRequest{1, RequestKind::kGet, 0, {"large"}}));
  constexpr size_t kBegun = 4096;  // more than the welcome: the reply is in transit
  EXPECT_EQ(reader.receive(kBegun).size(), kBegun);
  std::thread end([this] { server_.reset(); });
  EXPECT_TRUE(reader.receive(SIZE_MAX).ends_with(encode(Push{Push::Kind::kShutdown, "", -1, ""})));
  end.join();
}

// A server that accepts its client, replies to its enrolment, and then sends nothing.
class SilentServer {
 public:
  explicit SilentServer(const Welcome& welcome) : fd_(listen_loopback(options_.port)) {
    thread_ = std::thread([this, welcome] {
      const int client = ::accept(fd_, nullptr, nullptr);
      say(client, encode(welcome));
      // A reply that arrives before its request is dropped.
      for (auto heard = hear(client); !heard || heard->operation != RequestKind::kEnroll;) heard = hear(client);
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

  TcpStoreOptions options_;
  const int fd_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

TEST_F(TcpLiveness, TheSilenceOfTheServerIsALoss) {
  SilentServer server({BP_OK, "", 2, "host, pid 5", {50'000'000, 3'000'000'000}});
  const auto store = make_tcp_store(server.options(), soon());
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  const Loss loss = losses_.next();
  EXPECT_TRUE(loss.store);
  EXPECT_EQ(loss.rank, 2);
  EXPECT_EQ(loss.text,
            "rank 2 (host, pid 5) is lost: no heartbeat from it for 3 s; it may be suspended, or its network down");
}

TEST_F(TcpLiveness, TheEndOfTheServerIsALoss) {
  SilentServer server({BP_OK, "", -1, "host, pid 5", {}});
  const auto store = make_tcp_store(server.options(), soon());
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  server.end();
  const Loss loss = losses_.next();
  EXPECT_TRUE(loss.store);
  EXPECT_EQ(loss.rank, -1);
  EXPECT_EQ(loss.text, "the store at " + store->describe() +
                           " (host, pid 5), which detects lost ranks, is lost: its process ended");
}

// Clients that send other ranks' numbers and garbage end no rank.
TEST_F(TcpLiveness, HostileBytesLoseNoRank) {
  const auto store = connect();
  const auto membership = store->enroll({"g", 0, "host, pid 1"}, losses_.listener(), soon());
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const RawClient hostile(server_->port(),
                            encode(Hello{}) + encode(StoreRequest{1, RequestKind::kWithdraw, 0, {"g"}}) +
                                enrolment("g", 0) + encode(StoreRequest{3, RequestKind::kLeave, 0, {}}) + bytes);
    EXPECT_GT(store->add("n", 1, soon()), 0);
  }
  EXPECT_EQ(membership->absences(soon()), Absences());
  EXPECT_TRUE(losses_.silent());
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
